"""Decisions on rows with features as accounts over every bar of a split, those without features included."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.replay import PricedBars, price_bars, replay_priced
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import ExecutionSettings, Settings
from archetype_dagster.types import FLAT, ActionArray, IndexArray


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
        self.bar_rows: IndexArray = np.searchsorted(self.priced.timestamps, dataset.timestamps)
        found = np.minimum(self.bar_rows, len(self.priced) - 1)
        if not np.array_equal(self.priced.timestamps[found], dataset.timestamps):
            raise MarketDataError("the feature table has rows that are not among the bars", field="timestamp")
        self.horizon_starts = self.bar_rows[dataset.decision_starts()[0]]

    def trade(self, actions: ActionArray) -> Ledger:
        """Ledger of one action per dataset row; flat on the other bars."""
        every_bar = np.full(len(self.priced), FLAT, dtype=np.int8)
        every_bar[self.bar_rows] = actions
        return self._replay(every_bar, self.horizon_starts)

    def hold(self, action: int) -> Ledger:
        """Ledger of one action on all bars; horizons mean nothing to it."""
        return self._replay(np.full(len(self.priced), action, dtype=np.int8), np.empty(0, dtype=np.int64))

    def _replay(self, actions: ActionArray, horizon_starts: IndexArray) -> Ledger:
        # A trade on the last bar could only cost: its order repeats the one before.
        last = len(actions) - 1 - self.execution.execution_delay_bars
        if last >= 0:
            actions[last] = actions[last - 1] if last else FLAT
        return replay_priced(actions, self.priced, settings=self.execution, horizon_starts=horizon_starts)
