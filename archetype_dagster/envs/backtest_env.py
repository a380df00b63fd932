"""Gymnasium environments in which positions are traded: one leg, or several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.envs.checks import LARGEST, check_begun, checked_targets
from archetype_dagster.envs.legs import Leg
from archetype_dagster.envs.portfolio import Portfolio
from archetype_dagster.envs.sources import MarketData, several_legs, single_leg
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings
from archetype_dagster.types import StateArray


class PortfolioEnv(gym.Env[StateArray, Any]):
    """One account on some legs; `BacktestEnv` and `MultiLegBacktestEnv` say how it is made.

    See `Portfolio` for the order of events in a step. The reward is the change of net value over the initial
    capital. Net value of zero or less terminates; the end of the episode or of the data truncates. `info` holds
    `timestamp` (datetime64[us], bar end), `row`, `net_value`, `cash` and `position` (quote and base units, one a
    leg), and after a step `loss` (execution with commission) and `funding` (paid, negative for received), quote units.

    Attributes:
        observation_names: what each number of an observation is.
        portfolio: the account and its market.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        legs: list[Leg],
        settings: EnvironmentSettings,
        execution: ExecutionSettings,
        *,
        seed: int | None,
        render_mode: str | None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.render_mode = render_mode
        self.settings = settings
        self.portfolio = Portfolio(legs, settings, execution, num_envs=1)
        self.observation_space, self.action_space = portfolio_spaces(self.portfolio)
        self._first_seed = seed
        self._is_over = True
        self._path: list[tuple[int, float, NDArray[np.float64]]] = []

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of an observation's numbers, in order."""
        return self.portfolio.names

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Start an episode, flat.

        Args:
            seed: of this and the following starts; the first time the constructor's where there is none.
            options: `start`, the row to begin on instead of a drawn one.

        Raises:
            ValueError: an unknown option, or a start that no step can follow.
        """
        super().reset(seed=self._first_seed if seed is None else seed)
        self._first_seed = None
        chosen = dict(options or {})
        start = chosen.pop("start", None)
        if chosen:
            raise ValueError(f"options may hold 'start' only, got {sorted(chosen)}")
        starts = self.portfolio.draw_starts(1, self.np_random) if start is None else np.array([start], dtype=np.int64)
        self.portfolio.begin(np.zeros(1, dtype=np.int64), starts)
        self._is_over = False
        self._path = []
        return self._seen()

    def step(self, action: ArrayLike) -> tuple[StateArray, float, bool, bool, dict[str, Any]]:
        """Trade to the action's positions and let a bar pass.

        Raises:
            ResetNeeded: the episode is over, or none has begun.
            ValueError: an action of another shape, NaN, or outside what the action space allows.
        """
        check_begun(self._is_over)
        portfolio = self.portfolio
        discrete = self.settings.actions == "discrete"
        shape = (portfolio.num_legs,)
        taken = np.reshape(action, -1) if discrete and portfolio.num_legs == 1 and np.ndim(action) == 0 else action
        step = portfolio.step(checked_targets(taken, shape, discrete=discrete)[np.newaxis])
        self._is_over = bool(step.terminated[0] or step.truncated[0])
        observation, info = self._seen()
        info |= {"loss": float(step.losses[0]), "funding": float(step.funding[0])}
        return observation, float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """Net value and positions of the episode so far, RGB uint8 (400, 640, 3); None without a render mode."""
        if self.render_mode is None:
            return None
        from archetype_dagster.envs.rendering import episode_picture  # here, because it loads matplotlib

        rows = [row for row, _, _ in self._path]
        return episode_picture(
            self.portfolio.timestamps[rows],
            np.array([value for _, value, _ in self._path]),
            np.array([held for _, _, held in self._path]),
            [leg.name for leg in self.portfolio.legs],
        )

    def _seen(self) -> tuple[StateArray, dict[str, Any]]:
        portfolio = self.portfolio
        row, net_value = int(portfolio.row[0]), float(portfolio.net_value[0])
        if self.render_mode is not None:
            self._path.append((row, net_value, portfolio.held[0].copy()))
        info = {
            "timestamp": portfolio.timestamps[row],
            "row": row,
            "net_value": net_value,
            "cash": portfolio.cash[0].copy(),
            "position": portfolio.held[0] * portfolio.units,
        }
        return portfolio.observe()[0], info


class BacktestEnv(PortfolioEnv):
    """One instrument; an action of one is a position of the pair's m.

    Args:
        data: a bars table, a dataset or a feature table; whatever `load_bars` takes (`"synthetic"`, a path,
            market settings); an instrument, or nothing, for four weeks of the embedded market.
        pair: BTC, ETH, DOT or BNB, unless the data names it.
        settings: actions, observation and episodes.
        execution: commission, depth policy, delay and initial capital, by default m times the first mark.
        scaler: for the features of a bars table; without one they are shown as computed.
        seed: of the first reset, if that names none.
        render_mode: `rgb_array` or None.
    """

    def __init__(
        self,
        data: MarketData | None = None,
        *,
        pair: str = "ETH",
        settings: EnvironmentSettings | None = None,
        execution: ExecutionSettings | None = None,
        scaler: FeatureScaler | None = None,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        settings, execution = settings or EnvironmentSettings(), execution or ExecutionSettings()
        leg = single_leg(data, pair, settings, execution, scaler=scaler)
        super().__init__([leg], settings, execution, seed=seed, render_mode=render_mode)


class MultiLegBacktestEnv(PortfolioEnv):
    """Two or three instruments traded at the same time, each with its own price, scale and funding.

    Args:
        legs: instrument and scale of each: contracts held at an action of one.
        data: bars of each leg, in their order; None for four weeks of the embedded market.
        funding: settlements of swaps by symbol, as `funding_schedule` takes them.
        settings: actions, observation and episodes.
        execution: commission, depth policy, delay and initial capital, by default the legs' notional at the start.
        seed: of the first reset, if that names none.
        render_mode: `rgb_array` or None.
    """

    def __init__(
        self,
        legs: Sequence[tuple[Instrument, float]],
        *,
        data: Sequence[pl.DataFrame] | None = None,
        funding: Mapping[str, pl.DataFrame] | None = None,
        settings: EnvironmentSettings | None = None,
        execution: ExecutionSettings | None = None,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        settings, execution = settings or EnvironmentSettings(), execution or ExecutionSettings()
        found = several_legs(legs, data, funding, settings, execution)
        super().__init__(found, settings, execution, seed=seed, render_mode=render_mode)


def portfolio_spaces(portfolio: Portfolio) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one copy of a portfolio."""
    observations = spaces.Box(-LARGEST, LARGEST, (len(portfolio.names),), np.float32)
    legs = portfolio.num_legs
    if portfolio.settings.actions == "continuous":
        return observations, spaces.Box(-1.0, 1.0, (legs,), np.float32)
    return observations, spaces.Discrete(3) if legs == 1 else spaces.MultiDiscrete([3] * legs)
