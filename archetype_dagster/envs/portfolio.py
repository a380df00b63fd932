"""N copies of one portfolio of legs, stepped together: what the backtest environments wrap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archetype_dagster.envs.legs import Leg
from archetype_dagster.envs.observations import market_columns, observation_names
from archetype_dagster.envs.portfolio_kernel import observe, trade_one_bar
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, StateArray


class PortfolioStep(NamedTuple):
    """What N copies answer to N actions; the arrays are new ones.

    Attributes:
        rewards: float64 (N,), change of net value over initial capital.
        terminated: bool (N,), net value zero or less.
        truncated: bool (N,), end of the episode or of the data.
        losses: float64 (N,), execution loss with commission, quote units.
        funding: float64 (N,), funding paid, negative for received, quote units.
    """

    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    losses: FloatArray
    funding: FloatArray


class Portfolio:
    """N accounts on the same legs.

    One step on row t: the targets trade at the marks and books of row t; the bar passes; funding settled in
    (t, t + 1] is paid on the position held into it, by longs where the rate is positive, before anything trades
    on row t + 1; the net value is read off. So positions carry over gaps, as in a replay. With an execution delay d
    the targets of row t trade on row t + d, and those still on their way at a gap are cancelled.

    Args:
        legs: aligned legs.
        settings: what is shown and where episodes begin and end.
        execution: delay and initial capital; by default sum of unit times mark at an episode's start.
        num_envs: N.

    Raises:
        ValueError: num_envs below 1, or fewer than two rows.
    """

    def __init__(
        self, legs: list[Leg], settings: EnvironmentSettings, execution: ExecutionSettings, *, num_envs: int
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be positive, got num_envs={num_envs}")
        rows = len(legs[0])
        if rows < 2:
            raise ValueError(f"an episode needs at least two rows, got {rows} of {legs[0].name}")
        self.legs = legs
        self.settings = settings
        self.num_envs = num_envs
        self.num_legs = len(legs)
        self.timestamps = legs[0].timestamps
        self.mark = np.ascontiguousarray(np.stack([leg.mark for leg in legs], axis=1))
        self.units = np.array([leg.unit for leg in legs])
        self.episode_bars = min(settings.episode_bars or rows - 1, rows - 1)
        self.names = observation_names(legs, settings.lookback_bars)
        self._columns, self._offsets = market_columns(legs, relative=settings.units == "relative")
        self._sizes_per_unit = np.array([leg.sizes_per_unit for leg in legs])
        self._losses = np.ascontiguousarray(np.stack([leg.losses for leg in legs], axis=1))
        self._funding = np.ascontiguousarray(np.stack([leg.funding for leg in legs], axis=1))
        self._segment = legs[0].segment.astype(np.int64)
        self._first_row = np.searchsorted(self._segment, self._segment, side="left")
        self._initial_capital = execution.initial_capital
        self.row = np.zeros(num_envs, dtype=np.int64)
        self.start = np.zeros(num_envs, dtype=np.int64)
        self.end = np.zeros(num_envs, dtype=np.int64)
        self.cash = np.zeros((num_envs, self.num_legs))
        self.held = np.zeros((num_envs, self.num_legs))
        self.share = np.ones((num_envs, self.num_legs))
        self.capital = np.ones(num_envs)
        self._first_mark = np.ones((num_envs, self.num_legs))
        self._pending = np.full((num_envs, execution.execution_delay_bars, self.num_legs), np.nan)
        self._all = np.arange(num_envs)

    def draw_starts(self, count: int, generator: np.random.Generator) -> IndexArray:
        """Rows to begin at, int64 (count,): any that a whole episode follows, or the first."""
        if self.settings.starts == "first":
            return np.zeros(count, dtype=np.int64)
        return generator.integers(len(self.mark) - self.episode_bars, size=count)

    def begin(self, copies: IndexArray, starts: IndexArray) -> None:
        """Start an episode in some copies, flat, on the rows `starts`.

        Raises:
            ValueError: a start that no step can follow.
        """
        if ((starts < 0) | (starts > len(self.mark) - 2)).any():
            raise ValueError(f"starts must lie in 0..{len(self.mark) - 2}, got {starts.min()}..{starts.max()}")
        notional = self.units * self.mark[starts]
        total = notional.sum(axis=1)
        capital = total if self._initial_capital is None else np.full(len(starts), self._initial_capital)
        self.row[copies] = self.start[copies] = starts
        self.end[copies] = np.minimum(starts + self.episode_bars, len(self.mark) - 1)
        self.capital[copies] = capital
        self.share[copies] = self.cash[copies] = notional * (capital / total)[:, np.newaxis]
        self.held[copies] = 0.0
        self._first_mark[copies] = self.mark[starts]
        self._pending[copies] = np.nan

    def step(self, targets: FloatArray) -> PortfolioStep:
        """Trade one bar to the targets, float64 (N, L) in units, as `checked_targets` gives them."""
        rewards, paid = np.empty(self.num_envs), np.empty((self.num_envs, 2))
        terminated, truncated = np.empty(self.num_envs, dtype=np.bool_), np.empty(self.num_envs, dtype=np.bool_)
        trade_one_bar(
            targets, self.row, self.end, self.capital, self.cash, self.held, self._pending, self.mark, self._losses,
            self._sizes_per_unit, self.units, self._funding, self._segment, rewards, terminated, truncated, paid,
        )  # fmt: skip
        return PortfolioStep(rewards, terminated, truncated, paid[:, 0], paid[:, 1])

    def observe(self, copies: IndexArray | None = None) -> StateArray:
        """What some copies, or all, see now: float32 (n, size), in the order of `names`."""
        seen = self._all if copies is None else copies
        out = np.empty((len(seen), len(self.names)), dtype=np.float32)
        observe(
            seen, self.row, self._first_mark, self.share, self.cash, self.held, self.mark, self._columns,
            self._offsets, self._first_row, self.settings.lookback_bars, self.units,
            self.settings.units == "relative", out,
        )  # fmt: skip
        return out

    @property
    def net_value(self) -> FloatArray:
        """Cash and positions at the marks of the copies' rows, float64 (N,), quote units."""
        worth: FloatArray = (self.cash + self.held * self.units * self.mark[self.row]).sum(axis=1)
        return worth
