"""What is particular to training a baseline by Stable-Baselines3: the batched market and the greedy network kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import nn

from archetype_dagster.baselines.networks import PolicyNetwork
from archetype_dagster.baselines.sb3_agents import PerturbedTargetDQN, greedy_half
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.policies.sb3_blocks import BlockTask
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.types import JsonDict

VALIDATION_SCORE: Final = "validation_return"


class MarketTask(BlockTask):
    """A baseline on copies of the batched market; see `BlockTask`.

    Args:
        name: baseline.
        env: where it trains.
        best: a network of the agent's shapes, in which the best greedy weights are left.
        validate: score of a network's greedy actions.
        seed: seed of the run.
    """

    score = VALIDATION_SCORE

    def __init__(
        self,
        name: str,
        env: TradingVecEnv,
        best: PolicyNetwork,
        validate: Callable[[PolicyNetwork], float],
        seed: int,
    ) -> None:
        self.name = name
        self.env = env
        self.best = best
        self.current = PolicyNetwork(**best.shape).to(next(best.parameters()).device).eval()
        self.validate = validate
        self.seed = seed

    @property
    def kept(self) -> Mapping[str, nn.Module]:
        """See `BlockTask.kept`."""
        return {"best": self.best}

    def judge(self, agent: BaseAlgorithm) -> float:
        """See `BlockTask.judge`."""
        greedy_half(agent, self.current)
        return self.validate(self.current)

    def keep(self, agent: BaseAlgorithm) -> None:
        """See `BlockTask.keep`."""
        self.best.load_state_dict(self.current.state_dict())

    def is_finite(self, agent: BaseAlgorithm) -> bool:
        """See `BlockTask.is_finite`."""
        greedy_half(agent, self.current)
        market = torch.as_tensor(self.env.observe()[:, :-3], device=agent.device)
        if self.current.lookback_bars is not None:
            market = market.reshape(len(market), self.current.lookback_bars, -1)
        with torch.no_grad():
            scores = self.current(market)
        return all(bool(torch.isfinite(values).all()) for values in (*agent.policy.parameters(), scores))

    def begin(self, agent: BaseAlgorithm, block: int) -> None:
        """See `BlockTask.begin`; episodes go on, and their next starts are drawn anew."""
        self.env.core.generator = numpy_generator(self.seed, self.name, "starts", block)

    def metrics(self, agent: BaseAlgorithm) -> dict[str, float | None]:
        """See `BlockTask.metrics`: the loss that the library logged last."""
        loss = agent.logger.name_to_value.get("train/loss")
        return {"loss": None if loss is None else float(loss)}

    def state(self, agent: BaseAlgorithm) -> tuple[dict[str, np.ndarray], JsonDict]:
        """See `BlockTask.state`: the market's copies in the middle of their episodes."""
        arrays = {f"env/{name}": array for name, array in self.env.core.state().items()}
        arrays["env/starts"] = np.asarray(agent._last_episode_starts)
        if isinstance(agent, PerturbedTargetDQN):
            return arrays, {"copies": agent.copies, "next_copy": agent.next_copy}
        return arrays, {}

    def restore(self, agent: BaseAlgorithm, arrays: Mapping[str, np.ndarray], facts: JsonDict) -> None:
        """See `BlockTask.restore`."""
        self.env.core.restore({name.removeprefix("env/"): array for name, array in arrays.items()})
        agent._last_obs = self.env.observe()
        agent._last_episode_starts = arrays["env/starts"]
        if isinstance(agent, PerturbedTargetDQN):
            agent.copies, agent.next_copy = facts["copies"], facts["next_copy"]
