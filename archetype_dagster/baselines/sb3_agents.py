"""The agents of Stable-Baselines3 as each baseline uses them, and their greedy halves."""

from __future__ import annotations

from typing import Any, Final

import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import polyak_update
from torch import nn

from archetype_dagster.baselines.networks import CascadedLstm, PolicyNetwork
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import BaselineSettings

# More than any budget: the library's own copies to the target network never come.
_NEVER: Final = 2**62


class PerturbedTargetDQN(DQN):
    """DQN whose target network is copied at random intervals (CDQNRP, Zhu and Zhu 2022).

    Args:
        interval_steps: mean steps between two copies.
        perturbation: each interval is drawn uniformly from interval_steps (1 - perturbation, 1 + perturbation).
        run_seed: seed of the draws.
        keywords: DQN's own arguments.

    Attributes:
        copies: copies made so far.
        next_copy: call of the environment after which the next one is made.
    """

    def __init__(self, *, interval_steps: int, perturbation: float, run_seed: int, **keywords: Any) -> None:
        super().__init__(target_update_interval=_NEVER, **keywords)
        self.interval_calls = interval_steps / self.n_envs
        self.perturbation = perturbation
        self.run_seed = run_seed
        self.copies = 0
        self.next_copy = self.drawn_interval()

    def drawn_interval(self) -> int:
        """Calls of the environment from the newest copy to the next, at least 1."""
        generator = numpy_generator(self.run_seed, "cdqnrp", "target", self.copies)
        factor = generator.uniform(1 - self.perturbation, 1 + self.perturbation)
        return max(1, round(self.interval_calls * factor))

    def _on_step(self) -> None:
        super()._on_step()
        if self._n_calls >= self.next_copy:
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), 1.0)
            self.copies += 1
            self.next_copy = self._n_calls + self.drawn_interval()


class WindowExtractor(BaseFeaturesExtractor):
    """Encodes the window in an observation of `TradingVecEnv` and keeps the held action beside it.

    Args:
        observation_space: L (F + 1) + 3 numbers.
        lookback_bars: L.
        hidden_size: units of each LSTM.
    """

    def __init__(self, observation_space: spaces.Box, lookback_bars: int, hidden_size: int) -> None:
        super().__init__(observation_space, hidden_size + 3)
        self.lookback_bars = lookback_bars
        self.encoder = CascadedLstm((observation_space.shape[0] - 3) // lookback_bars - 1, hidden_size)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32 (B, L (F + 1) + 3) -> (B, H + 3)."""
        windows = observations[:, :-3].reshape(len(observations), self.lookback_bars, -1)
        return torch.cat((self.encoder(windows), observations[:, -3:]), dim=1)


def make_agent(
    name: str, env: TradingVecEnv, settings: BaselineSettings, *, seed: int, device: torch.device
) -> BaseAlgorithm:
    """An untrained agent; its weights come from torch's global stream.

    Args:
        name: clstm_ppo, ppo, cdqnrp or dqn.
        env: where it trains.
        settings: budgets and networks.
        seed: seed of the run.
        device: where it trains.
    """
    common: dict[str, Any] = {
        "env": env,
        "learning_rate": settings.learning_rate,
        "gamma": settings.gamma,
        "device": device,
    }
    if name in {"ppo", "clstm_ppo"}:
        return _ppo(settings, recurrent=name == "clstm_ppo", **common)
    dqn = settings.dqn
    common |= {
        "policy": "MlpPolicy",
        "buffer_size": max(dqn.buffer_steps, env.num_envs),
        "learning_starts": dqn.learning_starts,
        "batch_size": dqn.batch_size,
        "train_freq": 1,
        "gradient_steps": dqn.gradient_steps,
        "exploration_fraction": dqn.exploration_fraction,
        "exploration_final_eps": dqn.exploration_final,
        "policy_kwargs": {"net_arch": list(settings.hidden_sizes), "activation_fn": nn.ReLU},
    }
    if name == "cdqnrp":
        return PerturbedTargetDQN(
            **common,
            interval_steps=dqn.target_interval_steps,
            perturbation=dqn.target_perturbation,
            run_seed=seed,
        )
    return DQN(**common, target_update_interval=max(dqn.target_interval_steps, env.num_envs))


def greedy_half(agent: BaseAlgorithm, network: PolicyNetwork) -> None:
    """Copy the weights that decide an agent's greedy action into `network`, which has their shapes."""
    last = len(network.scores) - 1
    places = {
        "q_net.q_net.": "scores.",
        "mlp_extractor.policy_net.": "scores.",
        "action_net.": f"scores.{last}.",
        "features_extractor.encoder.": "encoder.",
    }
    weights = {
        place + name.removeprefix(prefix): weight
        for name, weight in agent.policy.state_dict().items()
        for prefix, place in places.items()
        if name.startswith(prefix)
    }
    network.load_state_dict(weights)


def _ppo(settings: BaselineSettings, *, recurrent: bool, **common: Any) -> PPO:
    hidden = list(settings.hidden_sizes)
    policy: dict[str, Any] = {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": nn.ReLU}
    if recurrent:
        policy["features_extractor_class"] = WindowExtractor
        policy["features_extractor_kwargs"] = settings.recurrent.model_dump()
    return PPO(
        ActorCriticPolicy,
        n_steps=settings.rollout.bars,
        batch_size=settings.rollout.batch_size,
        n_epochs=settings.ppo.epochs,
        gae_lambda=settings.ppo.gae_lambda,
        clip_range=settings.ppo.clip_range,
        ent_coef=settings.ppo.entropy_weight,
        vf_coef=settings.ppo.value_weight,
        policy_kwargs=policy,
        **common,
    )
