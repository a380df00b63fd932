"""The batched environments as Stable-Baselines3 wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from archetype_dagster.envs.batched import BatchedTradingEnv
from archetype_dagster.envs.vector import PortfolioVectorEnv
from archetype_dagster.envs.windows import LookbackWindows
from archetype_dagster.types import IndexArray, StateArray


class _CopiesOfOneMarket(VecEnv):
    """What every vector environment here answers alike: its copies are no environments of their own."""

    market: Any

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the market, once for each copy asked about; nothing is ever rendered."""
        value = None if attr_name == "render_mode" else getattr(self.market, attr_name)
        return [value] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: the copies share everything."""
        raise AttributeError(f"copies of one market share {attr_name!r}, it cannot be set")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Refused: a copy is no environment of its own."""
        raise AttributeError(f"a copy of the market has no method {method_name!r}")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """False for every copy."""
        return [False] * len(list(self._get_indices(indices)))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Refused: the market's generator decides."""
        raise AttributeError("starts are drawn by the market's own generator; seed that one")


class TradingVecEnv(_CopiesOfOneMarket):
    """`BatchedTradingEnv` behind the interface of Stable-Baselines3.

    With a lookback the row's state is replaced by its flattened window: L (F + 1) numbers of `LookbackWindows`
    and then the held action, one-hot. Every end of an episode is reported as a truncation with the observation
    it ended on, from which the library bootstraps.

    Args:
        core: the copies of the market.
        lookback_bars: L; None leaves the core's observations as they are.
    """

    def __init__(self, core: BatchedTradingEnv, lookback_bars: int | None = None) -> None:
        self.core = self.market = core
        self.windows = None if lookback_bars is None else LookbackWindows(core.dataset, lookback_bars)
        size = core.observation_size
        if self.windows is not None:
            size = self.windows.lookback_bars * self.windows.width + 3
        observations = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        super().__init__(core.num_envs, observations, spaces.Discrete(3))
        self._actions = core.held

    def observe(self) -> StateArray:
        """The current observations, float32 (N, size)."""
        return self._widened(self.core.observe(), self.core.rows)

    def reset(self) -> VecEnvObs:
        """Start a new episode in every copy."""
        self.core.reset()
        return self.observe()

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions (N,) for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards in percent of notional, ends of episodes, and an info for each copy."""
        following = self.core.rows + 1
        step = self.core.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = np.flatnonzero(step.truncated)
        final = self._widened(step.final_observations, following[ended])
        for copy, observation in zip(ended.tolist(), final, strict=True):
            infos[copy] = {"TimeLimit.truncated": True, "terminal_observation": observation}
        return self._widened(step.observations, self.core.rows), step.rewards, step.truncated, infos

    def _widened(self, observations: StateArray, rows: IndexArray) -> StateArray:
        if self.windows is None:
            return observations
        flattened = self.windows.at(rows).reshape(len(rows), self.windows.lookback_bars * self.windows.width)
        return np.concatenate((flattened, observations[:, -3:]), axis=1)


class PortfolioVecEnv(_CopiesOfOneMarket):
    """`BacktestVectorEnv` or `MultiLegBacktestVectorEnv` behind the interface of Stable-Baselines3.

    Ruin is reported as an end, the end of an episode or of the data as a truncation with the observation it ended
    on, from which the library bootstraps.

    Args:
        market: the copies.
        seed: of their starts.
    """

    def __init__(self, market: PortfolioVectorEnv, *, seed: int | None = None) -> None:
        self.market = market
        self._seed = seed
        super().__init__(market.num_envs, market.single_observation_space, market.single_action_space)
        self._actions: np.ndarray = np.zeros(0)

    def reset(self) -> VecEnvObs:
        """Start a new episode in every copy."""
        observations: StateArray = self.market.reset(seed=self._seed)[0]
        self._seed = None
        return observations

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the starts from the next reset on."""
        self._seed = seed
        return [seed] * self.num_envs

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards, ends of episodes, and an info for each copy."""
        observations, rewards, terminated, truncated, told = self.market.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = terminated | truncated
        for copy in np.flatnonzero(ended).tolist():
            infos[copy] = {
                "TimeLimit.truncated": bool(truncated[copy]),
                "terminal_observation": told["final_obs"][copy],
            }
        return observations, rewards, ended, infos
