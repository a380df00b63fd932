"""Many copies of a backtest environment behind Gymnasium's vector interface: one compiled call steps them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.envs.backtest_env import portfolio_spaces
from archetype_dagster.envs.batched import BatchedTradingEnv
from archetype_dagster.envs.checks import LARGEST, check_begun, checked_targets
from archetype_dagster.envs.embedded import embedded_dataset
from archetype_dagster.envs.legs import Leg
from archetype_dagster.envs.portfolio import Portfolio
from archetype_dagster.envs.sources import MarketData, several_legs, single_leg
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings
from archetype_dagster.types import BoolArray, FloatArray, StateArray

VectorStep = tuple[StateArray, FloatArray, BoolArray, BoolArray, dict[str, Any]]


class PortfolioVectorEnv(VectorEnv[StateArray, Any, Any]):
    """N accounts on the same legs; copies whose episode ended start a new one in the same step.

    The observation an episode ended on is in `info["final_obs"]`, float32 (N, size), where `info["_final_obs"]` is
    true; its other rows are zero; likewise `final_row` and `final_net_value`. `info` also holds `row` int64 (N,) and
    `net_value` float64 (N,), where each copy stands now, and `loss` and `funding` float64 (N,) of the step.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self, num_envs: int, legs: list[Leg], settings: EnvironmentSettings, execution: ExecutionSettings
    ) -> None:
        self.portfolio = Portfolio(legs, settings, execution, num_envs=num_envs)
        self.num_envs = num_envs
        self.settings = settings
        self.single_observation_space, self.single_action_space = portfolio_spaces(self.portfolio)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._action_shape = (num_envs, self.portfolio.num_legs)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of an observation's numbers, in order."""
        return self.portfolio.names

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Start an episode in every copy; `options` may hold `start`, one row for all or one for each copy.

        Raises:
            ValueError: an unknown option, or a start that no step can follow.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        start = chosen.pop("start", None)
        if chosen:
            raise ValueError(f"options may hold 'start' only, got {sorted(chosen)}")
        if start is None:
            starts = self.portfolio.draw_starts(self.num_envs, self.np_random)
        else:
            starts = np.broadcast_to(np.asarray(start, dtype=np.int64), (self.num_envs,))
        self.portfolio.begin(np.arange(self.num_envs), starts)
        return self.portfolio.observe(), {"row": self.portfolio.row.copy(), "net_value": self.portfolio.net_value}

    def step(self, actions: Any) -> VectorStep:
        """Trade one bar in every copy.

        Args:
            actions: (N, L) target positions, or 0, 1, 2 where discrete, which for one leg may be (N,).

        Raises:
            ResetNeeded: no episode has begun.
            ValueError: another shape, NaN, or an action outside what the action space allows.
        """
        # No episode ends on the first row: zero is what an end is before there is any.
        check_begun(not self.portfolio.end.all())
        taken = np.asarray(actions)
        discrete = self.settings.actions == "discrete"
        if discrete and self.portfolio.num_legs == 1 and taken.ndim == 1:
            taken = taken[:, np.newaxis]
        step = self.portfolio.step(checked_targets(taken, self._action_shape, discrete=discrete))
        info: dict[str, Any] = {"loss": step.losses, "funding": step.funding}
        ended = step.terminated | step.truncated
        observations = self.portfolio.observe()
        if ended.any():
            copies = np.flatnonzero(ended)
            info["final_obs"] = np.where(ended[:, np.newaxis], observations, 0)
            info["final_row"] = np.where(ended, self.portfolio.row, 0)
            info["final_net_value"] = np.where(ended, self.portfolio.net_value, 0.0)
            info |= dict.fromkeys(("_final_obs", "_final_row", "_final_net_value"), ended)
            self.portfolio.begin(copies, self.portfolio.draw_starts(len(copies), self.np_random))
            observations[copies] = self.portfolio.observe(copies)
        info |= {"row": self.portfolio.row.copy(), "net_value": self.portfolio.net_value}
        return observations, step.rewards, step.terminated, step.truncated, info


class BacktestVectorEnv(PortfolioVectorEnv):
    """N copies of `BacktestEnv`, whose arguments it takes."""

    def __init__(
        self,
        num_envs: int = 1,
        data: MarketData | None = None,
        *,
        pair: str = "ETH",
        settings: EnvironmentSettings | None = None,
        execution: ExecutionSettings | None = None,
        scaler: FeatureScaler | None = None,
    ) -> None:
        settings, execution = settings or EnvironmentSettings(), execution or ExecutionSettings()
        super().__init__(num_envs, [single_leg(data, pair, settings, execution, scaler=scaler)], settings, execution)


class MultiLegBacktestVectorEnv(PortfolioVectorEnv):
    """N copies of `MultiLegBacktestEnv`, whose arguments it takes."""

    def __init__(
        self,
        num_envs: int = 1,
        legs: Sequence[tuple[Instrument, float]] = (),
        *,
        data: Sequence[pl.DataFrame] | None = None,
        funding: Mapping[str, pl.DataFrame] | None = None,
        settings: EnvironmentSettings | None = None,
        execution: ExecutionSettings | None = None,
    ) -> None:
        settings, execution = settings or EnvironmentSettings(), execution or ExecutionSettings()
        super().__init__(num_envs, several_legs(legs, data, funding, settings, execution), settings, execution)


class BatchedTradingVectorEnv(VectorEnv[StateArray, Any, Any]):
    """`BatchedTradingEnv` behind Gymnasium's interface: three positions, rewards in percent of the notional.

    Episodes only ever truncate. The observation one ended on is in `info["final_obs"]`, float32 (N, F + 3), where
    `info["_final_obs"]` is true; its other rows are zero. `reset(seed=...)` reseeds the starts.

    Args:
        num_envs: N.
        dataset: rows to trade; by default four weeks of the embedded market.
        episode_bars: longest episode in steps.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, dataset: MarketDataset | None = None, *, episode_bars: int = 288) -> None:
        self.num_envs = num_envs
        self.core = BatchedTradingEnv(
            embedded_dataset() if dataset is None else dataset,
            num_envs=num_envs,
            episode_bars=episode_bars,
            generator=self.np_random,
        )
        shape = (self.core.observation_size,)
        self.single_observation_space = spaces.Box(-LARGEST, LARGEST, shape, np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Start a new episode in every copy.

        Raises:
            ValueError: options, of which there are none.
        """
        if options:
            raise ValueError(f"there are no options, got {sorted(options)}")
        super().reset(seed=seed)
        self.core.generator = self.np_random
        return self.core.reset(), {}

    def step(self, actions: Any) -> VectorStep:
        """Trade one bar in every copy: actions integers (N,), 0 short, 1 flat, 2 long.

        Raises:
            ValueError: actions of another shape, or an action outside 0..2.
        """
        step = self.core.step(actions)
        info: dict[str, Any] = {}
        if len(step.final_observations):
            info["final_obs"] = np.zeros_like(step.observations)
            info["final_obs"][step.truncated] = step.final_observations
            info["_final_obs"] = step.truncated
        return step.observations, step.rewards, np.zeros(self.num_envs, dtype=np.bool_), step.truncated, info
