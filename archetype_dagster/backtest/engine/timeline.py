"""What happens when, over all legs: shared bar ends, and the finer snapshots, trades and settlements between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from archetype_dagster.backtest.engine.leg import Leg, LegSpec, prepare_leg
from archetype_dagster.backtest.replay import bar_ends, bar_segments
from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import IndexArray

PRINT, SNAPSHOT, FUNDING = 0, 1, 2


@dataclass(frozen=True)
class Timeline:
    """The shared clock of a run.

    Attributes:
        legs: on the same T bar ends each.
        times: int64 (T,), bar ends, microseconds since 1970.
        segment: int32 (T,), grows where any leg has a gap.
        events: int64 (n, 4): time, kind, leg, index, in the order they happen; at one time trades come before
            the snapshot that shows what they left, and both before a settlement.
        first_event: int64 (T + 1,), events of bar t are those from first_event[t] to first_event[t + 1]: after
            bar end t - 1, up to bar end t for trades and before it for the rest.
        settlements: by bar, the (leg, index) of funding that settles at its very end.
    """

    legs: tuple[Leg, ...]
    times: IndexArray
    segment: IndexArray
    events: IndexArray
    first_event: IndexArray
    settlements: dict[int, list[tuple[int, int]]]

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def clock(self) -> list[tuple[int, bool, int, int]]:
        """Of each bar its end, whether a gap lies before it, and the range of its events, as plain numbers."""
        gaps = np.diff(self.segment, prepend=self.segment[:1]) != 0
        columns = (self.times, gaps, self.first_event[:-1], self.first_event[1:])
        return list(zip(*(column.tolist() for column in columns), strict=True))


def build_timeline(specs: Sequence[LegSpec], *, unequal_bars: str) -> Timeline:
    """Legs on common bar ends.

    Raises:
        MarketDataError: no bar, bar ends that do not increase, or that differ between legs where `unequal_bars`
            is `refuse`.
    """
    ends = [bar_ends(spec.bars).astype(np.int64) for spec in specs]
    for spec, own in zip(specs, ends, strict=True):
        if (np.diff(own) <= 0).any():
            row = int(np.argmax(np.diff(own) <= 0)) + 1
            raise MarketDataError(f"{spec.instrument.symbol}: bar ends must increase", row=row, field="timestamp")
    common = ends[0]
    for spec, own in zip(specs[1:], ends[1:], strict=True):
        if unequal_bars == "refuse" and not np.array_equal(own, ends[0]):
            odd = np.setxor1d(own, ends[0])[0]
            raise MarketDataError(
                f"{spec.instrument.symbol} and {specs[0].instrument.symbol} must have the same bar ends, "
                f"only one has {np.datetime64(int(odd), 'us')}; unequal_bars='common' walks what all have",
                field="timestamp",
            )
        common = np.intersect1d(common, own)
    if not len(common):
        raise MarketDataError("the engine needs at least one bar end that all legs have", field="timestamp")
    rows = [np.searchsorted(own, common) for own in ends]
    breaks = np.zeros(len(common), dtype=np.bool_)
    for spec, own in zip(specs, rows, strict=True):
        breaks[1:] |= (np.diff(bar_segments(spec.bars)[own]) != 0) | (np.diff(own) != 1)
    legs = tuple(prepare_leg(spec, spec.bars[pl.Series(own)]) for spec, own in zip(specs, rows, strict=True))
    events, first_event, settlements = _events(legs, common)
    return Timeline(legs, common, np.cumsum(breaks), events, first_event, settlements)


def _events(legs: tuple[Leg, ...], ends: IndexArray) -> tuple[IndexArray, IndexArray, dict[int, list[tuple[int, int]]]]:
    blocks, settlements = [], dict[int, list[tuple[int, int]]]()
    for number, leg in enumerate(legs):
        for kind, times in ((PRINT, leg.prints.times), (SNAPSHOT, leg.finer.times), (FUNDING, leg.funding.times)):
            index = np.flatnonzero((times > ends[0]) & (times <= ends[-1]))
            if kind == FUNDING:
                row = np.searchsorted(ends, times[index])
                at_end = ends[row] == times[index]
                for bar, which in zip(row[at_end].tolist(), index[at_end].tolist(), strict=True):
                    settlements.setdefault(bar, []).append((number, which))
                index = index[~at_end]
            fixed = np.broadcast_to((kind, number), (len(index), 2))
            blocks.append(np.column_stack([times[index], fixed, index]))
    events = np.concatenate(blocks).astype(np.int64)
    events = events[np.lexsort((events[:, 3], events[:, 2], events[:, 1], events[:, 0]))]
    bar = np.searchsorted(ends, events[:, 0])
    return events, np.searchsorted(bar, np.arange(len(ends) + 1)), settlements
