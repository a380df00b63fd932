"""The two bridges, as a specification asks for them: an agent trained on copies, its best weights kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import gymnasium as gym
import numpy as np
import polars as pl
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.policies import CleanRLAdapter, SB3Adapter
from archetype_dagster.policies.sb3_blocks import BlockTask, global_streams, train_in_blocks
from archetype_dagster.seeding import derive_seed
from archetype_dagster.settings.policy_specs import PolicySpec, PpoAlgorithm, SacAlgorithm, SingleFileAlgorithm
from archetype_dagster.types import JsonDict, Progress, StateArray

Copies = Sequence[gym.Env[StateArray, Any]]
Judge = Callable[[BasePolicy | CleanRLAdapter], float]
SCORE: Final = "validation_reward"
_NAME: Final = "policy"
_CONSTANTS: Final = frozenset({"train/n_updates", "train/learning_rate", "train/clip_range"})


def train_agent(
    spec: PolicySpec,
    environments: Copies,
    judge: Judge,
    *,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> tuple[BasePolicy | CleanRLAdapter, pl.DataFrame]:
    """Train with the specification's bridge on copies of the environment.

    Returns:
        the policy with the best weights by `judge`, on the CPU, and the history.

    Raises:
        SettingsError: what algorithm, backbone or network refuse.
        ArchetypeError: the weights are no longer finite.
    """
    if isinstance(spec.algorithm, SingleFileAlgorithm):
        return _train_single_file(spec, environments, judge, device=device, resume=resume, progress=progress)
    env = _Counted([lambda one=one: one for one in environments])  # type: ignore[misc]
    with global_streams(device):
        torch.manual_seed(derive_seed(spec.seed, _NAME, "initialisation"))
        agent = sb3_adapter(spec).build(env, seed=None, device=device)
        task = _VectorTask(env, deepcopy(agent.policy), judge, spec.seed)
        history = train_in_blocks(
            task,
            agent,
            total_steps=spec.total_steps,
            evaluations=spec.validation.times,
            seed=spec.seed,
            resume=resume,
            progress=progress,
        )
    policy = task.best.cpu()
    policy.set_training_mode(False)
    return policy, _history(history)


def sb3_adapter(spec: PolicySpec) -> SB3Adapter:
    """The adapter that the specification's PPO or SAC stands for.

    Raises:
        SettingsError: the algorithm is of the other bridge.
    """
    algorithm, backbone = spec.algorithm, spec.backbone
    policy: dict[str, Any] = {
        "net_arch": list(algorithm.hidden_sizes),
        "features_extractor_class": "BackboneFeaturesExtractor",
        "features_extractor_kwargs": {
            "backbone_alias": backbone.alias,
            "sequence_length": spec.environment.lookback_bars,
            "features_dim": backbone.features_dim,
            "backbone_kwargs": backbone.arguments,
        },
    }
    parameters: dict[str, Any] = {"learning_rate": algorithm.learning_rate, "gamma": algorithm.gamma}
    if isinstance(algorithm, PpoAlgorithm):
        policy["log_std_init"] = math.log(algorithm.initial_deviation)
        parameters |= {
            "n_steps": algorithm.rollout_steps,
            "batch_size": algorithm.batch_size,
            "n_epochs": algorithm.epochs,
            "gae_lambda": algorithm.gae_lambda,
            "clip_range": algorithm.clip_range,
            "ent_coef": algorithm.entropy_weight,
            "vf_coef": algorithm.value_weight,
            "max_grad_norm": algorithm.max_gradient_norm,
        }
    if isinstance(algorithm, SacAlgorithm):
        parameters |= {
            "buffer_size": max(algorithm.buffer_steps, spec.copies),
            "learning_starts": algorithm.learning_starts,
            "batch_size": algorithm.batch_size,
            "train_freq": algorithm.train_interval,
            "gradient_steps": algorithm.gradient_steps,
            "tau": algorithm.target_rate,
            "ent_coef": algorithm.entropy_weight,
        }
    return SB3Adapter(algorithm.name, policy_kwargs=policy, **parameters)


def _train_single_file(
    spec: PolicySpec,
    environments: Copies,
    judge: Judge,
    *,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> tuple[CleanRLAdapter, pl.DataFrame]:
    adapter = CleanRLAdapter(
        environments[0].observation_space,
        environments[0].action_space,
        {
            **spec.algorithm.model_dump(exclude={"name"}),
            "backbone_alias": spec.backbone.alias,
            "backbone_kwargs": spec.backbone.arguments,
            "features_dim": spec.backbone.features_dim,
            "sequence_length": spec.environment.lookback_bars,
            "total_steps": spec.total_steps,
        },
        seed=spec.seed,
        device=device,
    )
    envs = SyncVectorEnv(
        [lambda one=one: one for one in environments],  # type: ignore[misc]
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    history = adapter.learn(
        envs, progress, judge=lambda: judge(adapter), evaluations=spec.validation.times, resume=resume
    )
    return adapter.to("cpu"), _history(
        [{SCORE if name == "score" else name: value for name, value in row.items()} for row in history]
    )


def _history(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows as a frame; a state that training goes on from sorts its keys, so their order decides nothing."""
    frame = pl.from_dicts(rows, infer_schema_length=None)
    return frame.select("steps", SCORE, *sorted(set(frame.columns) - {"steps", SCORE}))


class _Counted(DummyVecEnv):
    """Copies that add up what they were paid since they were last asked."""

    def __init__(self, makers: list[Callable[[], gym.Env[StateArray, Any]]]) -> None:
        super().__init__(makers)
        self._paid, self._steps = 0.0, 0

    def step_wait(self) -> VecEnvStepReturn:
        """See the library."""
        step = super().step_wait()
        self._paid += float(step[1].sum())
        self._steps += self.num_envs
        return step

    def mean_reward(self) -> float | None:
        """Mean reward per step since the last call; None where there was no step."""
        mean = self._paid / self._steps if self._steps else None
        self._paid, self._steps = 0.0, 0
        return mean


class _VectorTask(BlockTask):
    """An agent on copies of one environment whose episodes begin anew with every block; see `BlockTask`."""

    name = _NAME
    score = SCORE

    def __init__(self, env: _Counted, best: BasePolicy, judge: Judge, seed: int) -> None:
        self.env = env
        self.best = best
        self.verdict = judge
        self.seed = seed

    @property
    def kept(self) -> Mapping[str, nn.Module]:
        """See `BlockTask.kept`."""
        return {"best": self.best}

    def judge(self, agent: BaseAlgorithm) -> float:
        """See `BlockTask.judge`."""
        agent.policy.set_training_mode(False)
        return self.verdict(agent.policy)

    def keep(self, agent: BaseAlgorithm) -> None:
        """See `BlockTask.keep`."""
        self.best.load_state_dict(agent.policy.state_dict())

    def is_finite(self, agent: BaseAlgorithm) -> bool:
        """See `BlockTask.is_finite`."""
        return all(bool(torch.isfinite(weight).all()) for weight in agent.policy.parameters())

    def begin(self, agent: BaseAlgorithm, block: int) -> None:
        """See `BlockTask.begin`: nothing of an episode is saved, so that nothing of an environment has to be."""
        self.env.seed(derive_seed(self.seed, self.name, "starts", block) % 2**31)
        agent._last_obs = np.asarray(self.env.reset())
        agent._last_episode_starts = np.ones(self.env.num_envs, dtype=np.bool_)

    def metrics(self, agent: BaseAlgorithm) -> dict[str, float | None]:
        """See `BlockTask.metrics`: mean reward per step, and what the library logged last."""
        logged = {
            name: float(value)
            for name, value in sorted(agent.logger.name_to_value.items())
            if name.startswith("train/") and name not in _CONSTANTS
        }
        return {"reward": self.env.mean_reward(), **logged}

    def state(self, agent: BaseAlgorithm) -> tuple[dict[str, np.ndarray], JsonDict]:
        """See `BlockTask.state`."""
        return {}, {}

    def restore(self, agent: BaseAlgorithm, arrays: Mapping[str, np.ndarray], facts: JsonDict) -> None:
        """See `BlockTask.restore`."""
