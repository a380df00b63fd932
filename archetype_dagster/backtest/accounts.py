"""Decisions on rows with features as accounts over every bar of a split, those without features included."""

from __future__ import annotations

from copy import copy
from datetime import datetime

import numpy as np
import polars as pl

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.replay import PricedBars, price_bars, replay_priced
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import ExecutionSettings, Settings
from archetype_dagster.types import FLAT, ActionArray, FloatArray, IndexArray


class SplitAccounts:
    """All bars of one date range, priced once.

    Args:
        bars: bars of the pair, segmented.
        dataset: the rows among them that have features.
        settings: the run's settings.
        span: half-open range of bar ends, UTC.

    Attributes:
        priced: the T bars of the range.
        book_sources: distinct sources of their books.
        bar_rows: int64 (R,), bar of each dataset row.
        horizon_starts: int64 (n,), bar at which each horizon starts.

    Raises:
        MarketDataError: no bar, or no dataset row, in the range, or a row that is not among the bars.
    """

    def __init__(
        self,
        bars: pl.DataFrame,
        dataset: MarketDataset,
        settings: Settings,
        span: tuple[datetime, datetime],
    ) -> None:
        inside = bars.filter(pl.col("timestamp").is_between(*span, closed="left"))
        if not inside.height or not len(dataset):
            raise MarketDataError(f"no bars with features between {span[0]} and {span[1]}", field="timestamp")
        self.execution: ExecutionSettings = settings.execution
        self.priced: PricedBars = price_bars(inside, settings.pair(dataset.pair), self.execution)
        self.book_sources = tuple(sorted(inside["book_source"].unique()))
        self._place(dataset)

    def for_rows(self, dataset: MarketDataset) -> SplitAccounts:
        """The same priced bars with other rows to decide on; `MarketDataError` for a row that is not among them."""
        other = copy(self)
        other._place(dataset)
        return other

    def row_costs(self) -> FloatArray:
        """Execution loss O of each dataset row's bar, float64 (R, 3, 3), quote units."""
        return np.asarray((self.priced.slippage + self.priced.commission)[self.bar_rows])

    def trade(self, actions: ActionArray) -> Ledger:
        """Ledger of one action per dataset row; flat on the other bars."""
        return self._replay(self.every_bar(actions), self.horizon_starts)

    def every_bar(self, actions: ActionArray) -> ActionArray:
        """Actions int8 (T,) of all bars for one action per dataset row; flat on the other bars."""
        spread = np.full(len(self.priced), FLAT, dtype=np.int8)
        spread[self.bar_rows] = actions
        return spread

    def whole_path(self, ledger: Ledger) -> FloatArray:
        """Initial capital and net value of each of the T bars, float64 (T + 1,): zero from ruin on."""
        path = np.zeros(len(self.priced) + 1)
        path[: len(ledger) + 1] = ledger.net_value_path
        return np.maximum(path, 0.0)

    def hold(self, action: int) -> Ledger:
        """Ledger of one action on all bars; horizons mean nothing to it."""
        return self._replay(np.full(len(self.priced), action, dtype=np.int8), np.empty(0, dtype=np.int64))

    def _place(self, dataset: MarketDataset) -> None:
        self.bar_rows: IndexArray = np.searchsorted(self.priced.timestamps, dataset.timestamps)
        found = np.minimum(self.bar_rows, len(self.priced) - 1)
        if not np.array_equal(self.priced.timestamps[found], dataset.timestamps):
            raise MarketDataError("the feature table has rows that are not among the bars", field="timestamp")
        self.horizon_starts: IndexArray = self.bar_rows[dataset.decision_starts()[0]]

    def _replay(self, actions: ActionArray, horizon_starts: IndexArray) -> Ledger:
        return trade_every_bar(actions, self.priced, settings=self.execution, horizon_starts=horizon_starts)


def trade_every_bar(
    actions: ActionArray, priced: PricedBars, *, settings: ExecutionSettings, horizon_starts: IndexArray
) -> Ledger:
    """Ledger of one action per bar, int8 (T,), in which nothing is traded on the last bar, where it could only cost."""
    last = len(actions) - 1 - settings.execution_delay_bars
    if last >= 0:
        actions = actions.copy()
        actions[last] = actions[last - 1] if last else FLAT
    return replay_priced(actions, priced, settings=settings, horizon_starts=horizon_starts)
