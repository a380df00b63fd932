"""The last bars before a decision as one array, for networks that read a window instead of a single bar."""

from __future__ import annotations

import numpy as np

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.types import IndexArray, StateArray


class LookbackWindows:
    """Windows of at most L bars that end on a row and never leave its segment.

    Args:
        dataset: rows to cut windows from.
        lookback_bars: L, the row itself included.

    Raises:
        ValueError: lookback_bars below 1.
    """

    def __init__(self, dataset: MarketDataset, lookback_bars: int) -> None:
        if lookback_bars < 1:
            raise ValueError(f"lookback_bars must be positive, got lookback_bars={lookback_bars}")
        self.lookback_bars = lookback_bars
        rows = len(dataset)
        self._first = np.searchsorted(dataset.segment, dataset.segment, side="left")
        # One row of zeros at the end is what positions without a bar are gathered from.
        self._marked = np.zeros((rows + 1, dataset.num_features + 1), dtype=np.float32)
        self._marked[:rows, :-1] = dataset.states
        self._marked[:rows, -1] = 1.0

    @property
    def width(self) -> int:
        """F + 1."""
        return int(self._marked.shape[1])

    def at(self, rows: IndexArray) -> StateArray:
        """Windows ending on `rows` (n,): float32 (n, L, F + 1), oldest bar first.

        The last column is 1 on a bar. Where a segment has begun less than L bars ago the bars come first and
        zeros follow, so that a network running forwards has read nothing but bars when it reaches the last one.
        """
        rows = np.asarray(rows, dtype=np.int64)
        begin = np.maximum(rows - self.lookback_bars + 1, self._first[rows])
        wanted = begin[:, np.newaxis] + np.arange(self.lookback_bars)
        return self._marked[np.where(wanted <= rows[:, np.newaxis], wanted, len(self._marked) - 1)]
