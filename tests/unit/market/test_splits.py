"""Splits are cut by date, disjoint, and purged where they touch."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError, SealedSplitError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import SplitSettings

START = datetime(2024, 1, 1, tzinfo=UTC)
HORIZON = 6


def at(bar: int) -> datetime:
    return START + timedelta(minutes=10 * bar)


def dataset(steps: np.ndarray, *, delay: int = 0) -> MarketDataset:
    """Rows at the given bars of the grid; a missing bar ends a segment."""
    rows = len(steps)
    segment = np.cumsum(np.diff(steps, prepend=steps[:1] - 1) != 1)
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01", "us") + steps * np.timedelta64(10, "m"),
        states=np.zeros((rows, 2), np.float32),
        mark=steps.astype(np.float64),
        costs=np.zeros((rows, 3, 3)),
        segment=segment.astype(np.int32),
        max_position=1.0,
        horizon_bars=HORIZON,
        execution_delay_bars=delay,
    )


def ranges(*bars: int) -> SplitSettings:
    names = ("train_start", "train_end", "validation_start", "validation_end", "test_start", "test_end")
    return SplitSettings.model_validate(dict(zip(names, map(at, bars), strict=True)))


def test_ranges_are_half_open_and_touching_splits_lose_a_horizon() -> None:
    parts = split_dataset(dataset(np.arange(100)), ranges(10, 40, 40, 70, 70, 100))
    assert parts.train.mark.tolist() == list(range(10, 40))
    assert parts.validation.mark.tolist() == list(range(40 + HORIZON, 70))
    assert parts.test.mark.tolist() == list(range(70 + HORIZON, 100))


def test_a_gap_between_splits_needs_no_purge() -> None:
    bars = np.concatenate([np.arange(0, 40), np.arange(41, 100)])
    parts = split_dataset(dataset(bars), ranges(0, 40, 40, 70, 70, 100))
    assert parts.validation.mark[0] == 41


def test_a_gap_inside_the_purged_stretch_ends_it() -> None:
    bars = np.concatenate([np.arange(0, 43), np.arange(44, 100)])
    parts = split_dataset(dataset(bars), ranges(0, 40, 40, 70, 70, 100))
    assert parts.validation.mark[0] == 44


def test_dates_left_between_splits_count_towards_the_purge() -> None:
    near = split_dataset(dataset(np.arange(100)), ranges(0, 40, 43, 70, 80, 100))
    assert near.validation.mark[0] == 40 + HORIZON
    assert near.test.mark[0] == 80


@given(st.sets(st.integers(0, 299), max_size=25))
def test_no_row_of_a_later_split_is_within_a_horizon_of_the_earlier_one(missing: set[int]) -> None:
    bars = np.array([bar for bar in range(300) if bar not in missing])
    data = dataset(bars)
    parts = split_dataset(data, ranges(0, 100, 100, 200, 200, 300))
    for before, after in ((parts.train, parts.validation), (parts.validation, parts.test)):
        assert before.timestamps[-1] < after.timestamps[0]
        same = after.segment == before.segment[-1]
        assert (after.mark[same] - before.mark[-1] > HORIZON).all()
    kept = sum(len(part) for part in (parts.train, parts.validation, parts.test))
    assert len(data) - 2 * HORIZON <= kept <= len(data)


@pytest.mark.parametrize(
    ("bars", "message"),
    [
        ((0, 5, 40, 70, 70, 100), "train split .* needs 7 bars without a gap .* holds 5 rows, at most 5"),
        ((0, 40, 40, 50, 60, 100), "validation split .* holds 4 rows, at most 4"),
        ((0, 40, 40, 70, 200, 300), "test split .* holds 0 rows, at most 0 .*runs from 2024-01-01T00:00"),
    ],
)
def test_a_split_without_a_horizon_says_what_is_there(bars: tuple[int, ...], message: str) -> None:
    with pytest.raises(MarketDataError, match=message):
        split_dataset(dataset(np.arange(100)), ranges(*bars))


def test_a_sealed_test_split_is_neither_needed_nor_given() -> None:
    whole = split_dataset(dataset(np.arange(100)), ranges(0, 40, 40, 70, 70, 100))
    sealed = split_dataset(dataset(np.arange(70)), ranges(0, 40, 40, 70, 70, 100), sealed=True)
    assert sealed.train.mark.tolist() == whole.train.mark.tolist()
    assert sealed.validation.mark.tolist() == whole.validation.mark.tolist()
    with pytest.raises(SealedSplitError, match="the test split is sealed"):
        _ = sealed.test


def test_a_sealed_dataset_that_goes_on_after_validation_is_refused() -> None:
    with pytest.raises(SealedSplitError, match=r"must end before 2024-01-01 11:40, .* got a row at 2024-01-01T11:40"):
        split_dataset(dataset(np.arange(71)), ranges(0, 40, 40, 70, 80, 100), sealed=True)


def test_an_execution_delay_makes_a_horizon_longer() -> None:
    with pytest.raises(MarketDataError, match=r"train split .* needs 8 bars .* at most 7"):
        split_dataset(dataset(np.arange(100), delay=1), ranges(0, 7, 40, 70, 70, 100))


def test_rows_in_scraps_too_short_for_a_horizon_are_not_enough() -> None:
    bars = np.concatenate([np.arange(0, 12, 2), np.arange(40, 100)])
    with pytest.raises(MarketDataError, match="holds 6 rows, at most 1"):
        split_dataset(dataset(bars), ranges(0, 40, 40, 70, 70, 100))
