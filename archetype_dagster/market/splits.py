"""Cutting a dataset by date into training, validation and test, purged where two of them touch."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import numpy as np

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import SplitSettings


class Splits(NamedTuple):
    """The three parts of one dataset, in order of time."""

    train: MarketDataset
    validation: MarketDataset
    test: MarketDataset


def split_dataset(dataset: MarketDataset, splits: SplitSettings) -> Splits:
    """Cut a dataset by bar end into half-open date ranges.

    Validation and test lose their first rows that lie within `horizon_bars` bars of the last row of
    the split before, unless a gap parts them: no horizon straddles a border, and none of one split
    neighbours a horizon of another.

    Args:
        dataset: T rows, oldest first.
        splits: the date ranges.

    Raises:
        MarketDataError: a split is empty or holds no whole horizon; says what is there.
    """
    ranges = {
        "train": (splits.train_start, splits.train_end),
        "validation": (splits.validation_start, splits.validation_end),
        "test": (splits.test_start, splits.test_end),
    }
    parts: dict[str, MarketDataset] = {}
    last_before = -1
    for name, (start, end) in ranges.items():
        low, high = np.searchsorted(dataset.timestamps, [_naive(start), _naive(end)]).tolist()
        if last_before >= 0:
            low = _purged(dataset, last_before, low, high)
        part = dataset.rows(slice(low, high))
        if not len(part.horizon_starts()):
            raise MarketDataError(_too_short(dataset, part, name, start, end), field="timestamp")
        parts[name] = part
        last_before = high - 1
    return Splits(**parts)


def _purged(dataset: MarketDataset, last_before: int, low: int, high: int) -> int:
    """First row of [low, high) that is further than h bars from `last_before` or behind a gap."""
    near = np.arange(low, min(high, last_before + 1 + dataset.horizon_bars))
    return low + int((dataset.segment[near] == dataset.segment[last_before]).sum())


def _too_short(dataset: MarketDataset, part: MarketDataset, name: str, start: datetime, end: datetime) -> str:
    needed = dataset.horizon_bars + dataset.execution_delay_bars + 1
    longest = int(np.unique(part.segment, return_counts=True)[1].max()) if len(part) else 0
    span = (
        f"data with features runs from {dataset.timestamps[0]} to {dataset.timestamps[-1]}"
        if len(dataset)
        else ("there is no data with features")
    )
    return (
        f"the {name} split from {start:%Y-%m-%d %H:%M} until before {end:%Y-%m-%d %H:%M} needs {needed} bars "
        f"without a gap for one horizon; it holds {len(part)} rows, at most {longest} of them without a gap; {span}"
    )


def _naive(moment: datetime) -> np.datetime64:
    return np.datetime64(moment.replace(tzinfo=None), "us")
