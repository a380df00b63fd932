"""Cutting a dataset by date into training, validation and test, purged where two of them touch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from archetype_dagster.errors import MarketDataError, SealedSplitError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import SplitSettings


@dataclass(frozen=True)
class Splits:
    """The three parts of one dataset, in order of time.

    Attributes:
        train: to learn from.
        validation: to choose by.
        held_out: the test split; None where it is sealed, and its rows are then nowhere in the dataset.
    """

    train: MarketDataset
    validation: MarketDataset
    held_out: MarketDataset | None

    @property
    def test(self) -> MarketDataset:
        """The test split; `SealedSplitError` where it is sealed."""
        if self.held_out is None:
            raise SealedSplitError("the test split is sealed here: choices are made by the validation split alone")
        return self.held_out


def split_dataset(dataset: MarketDataset, splits: SplitSettings, *, sealed: bool = False) -> Splits:
    """Cut a dataset by bar end into half-open date ranges.

    Validation and test lose their first rows that lie within `horizon_bars` bars of the last row of
    the split before, unless a gap parts them: no horizon straddles a border, and none of one split
    neighbours a horizon of another.

    Args:
        dataset: T rows, oldest first.
        splits: the date ranges.
        sealed: leave the test split out, and refuse a dataset that holds anything from validation's end on.

    Raises:
        MarketDataError: a split is empty or holds no whole horizon; says what is there.
        SealedSplitError: a sealed dataset with rows after the validation split.
    """
    if sealed and len(dataset) and dataset.timestamps[-1] >= _naive(splits.validation_end):
        raise SealedSplitError(
            f"a sealed dataset must end before {splits.validation_end:%Y-%m-%d %H:%M}, where validation ends, "
            f"got a row at {dataset.timestamps[-1]}"
        )
    ranges = {
        "train": (splits.train_start, splits.train_end),
        "validation": (splits.validation_start, splits.validation_end),
    }
    if not sealed:
        ranges["test"] = (splits.test_start, splits.test_end)
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
    return Splits(parts["train"], parts["validation"], parts.get("test"))


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
