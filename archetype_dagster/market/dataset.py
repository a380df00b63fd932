"""Aligned arrays that planning, training and evaluation share, and the horizons cut from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from archetype_dagster.types import BoolArray, FloatArray, IndexArray, StateArray


@dataclass(frozen=True)
class HorizonBatch:
    """B horizons of h bars.

    Attributes:
        states: float32 (B, h, F), scaled features known at each decision.
        mark: float64 (B, h + 1), mark prices at execution, quote units.
        costs: float64 (B, h, 3, 3), execution loss O by (from, to) action, quote units.
    """

    states: StateArray
    mark: FloatArray
    costs: FloatArray

    def __len__(self) -> int:
        return len(self.mark)


@dataclass(frozen=True)
class MarketDataset:
    """Rows that have features, oldest first; row t holds only what was known at bar end t.

    Attributes:
        pair: traded pair.
        timestamps: datetime64[us] (T,), bar ends, UTC.
        states: float32 (T, F), features scaled on the training split.
        mark: float64 (T,), mid price in quote units.
        costs: float64 (T, 3, 3), execution loss O_t by (from, to) action in quote units.
        segment: int32 (T,), equal for rows without a gap between them.
        max_position: m in base units.
        horizon_bars: horizon h.
        execution_delay_bars: bars from a decision to the book it executes on.
    """

    pair: str
    timestamps: NDArray[np.datetime64]
    states: StateArray
    mark: FloatArray
    costs: FloatArray
    segment: NDArray[np.int32]
    max_position: float
    horizon_bars: int
    execution_delay_bars: int = 0

    def __len__(self) -> int:
        return len(self.mark)

    @property
    def num_features(self) -> int:
        """Number of features F."""
        return int(self.states.shape[1])

    def rows(self, selection: slice | BoolArray) -> MarketDataset:
        """The same dataset restricted to some rows, in order."""
        return replace(
            self,
            timestamps=self.timestamps[selection],
            states=self.states[selection],
            mark=self.mark[selection],
            costs=self.costs[selection],
            segment=self.segment[selection],
        )

    def between(self, start: datetime, end: datetime) -> MarketDataset:
        """Rows whose bar ends in the half-open range [start, end), both UTC."""
        low, high = np.searchsorted(self.timestamps, [_to_datetime64(start), _to_datetime64(end)])
        return self.rows(slice(int(low), int(high)))

    def horizon_starts(self, stride: int = 1) -> IndexArray:
        """Rows from which a whole horizon, with its execution delay, lies in one segment.

        Starts are `stride` bars apart counted from each segment's first row. Returns int64 (n,).
        """
        reach = self.horizon_bars + self.execution_delay_bars
        if len(self) <= reach:
            return np.empty(0, dtype=np.int64)
        whole = self.segment[:-reach] == self.segment[reach:]
        return np.flatnonzero(whole & (self._offset_in_segment()[:-reach] % stride == 0)).astype(np.int64)

    def decision_starts(self) -> tuple[IndexArray, IndexArray]:
        """Starts and lengths of the consecutive horizons a live policy would run, the cut ones included.

        A new horizon begins at each segment's first row and after every h bars; a gap or the end of
        data cuts the last one short. Returns int64 (n,) starts and int64 (n,) lengths in 1..h.
        """
        offset = self._offset_in_segment()
        starts = np.flatnonzero(offset % self.horizon_bars == 0).astype(np.int64)
        lengths = np.diff(np.append(starts, len(self))).astype(np.int64)
        return starts, lengths

    def aligned(self, offset: int) -> MarketDataset:
        """The rows from the `offset`-th of each segment on, so that its consecutive horizons begin there.

        The rows left out belong to no horizon; offset 0 leaves out none.

        Raises:
            ValueError: an offset outside 0..h-1.
        """
        if not 0 <= offset < self.horizon_bars:
            raise ValueError(f"offset must lie in 0..{self.horizon_bars - 1}, got offset={offset}")
        return self.rows(self._offset_in_segment() >= offset)

    def horizons(self, starts: IndexArray) -> HorizonBatch:
        """Cut the whole horizons that begin at `starts` (B,); copies only those rows."""
        h, delay = self.horizon_bars, self.execution_delay_bars
        states = sliding_window_view(self.states, h, axis=0)[starts].transpose(0, 2, 1)
        mark = sliding_window_view(self.mark, h + 1)[starts + delay]
        costs = sliding_window_view(self.costs, h, axis=0)[starts + delay].transpose(0, 3, 1, 2)
        return HorizonBatch(np.ascontiguousarray(states), mark, np.ascontiguousarray(costs))

    def _offset_in_segment(self) -> IndexArray:
        positions = np.arange(len(self), dtype=np.int64)
        first = np.ones(len(self), dtype=np.bool_)
        first[1:] = self.segment[1:] != self.segment[:-1]
        starts: IndexArray = np.maximum.accumulate(np.where(first, positions, 0))
        return positions - starts


def _to_datetime64(moment: datetime) -> np.datetime64:
    return np.datetime64(moment.replace(tzinfo=None), "us")
