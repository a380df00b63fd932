"""The shared dataset: horizons never span a gap and carry the execution delay."""

from datetime import UTC, datetime

import numpy as np
import pytest

from archetype_dagster.market.dataset import MarketDataset


def make_dataset(lengths: tuple[int, ...] = (9, 5, 12), *, horizon_bars: int = 4, delay: int = 0) -> MarketDataset:
    rows = sum(lengths)
    segment = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    minutes = (np.arange(rows) + 50 * segment) * 10
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2022-01-01T00:10", "us") + minutes.astype("timedelta64[m]"),
        states=np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        mark=100.0 + np.arange(rows),
        costs=np.arange(rows * 9, dtype=np.float64).reshape(rows, 3, 3),
        segment=segment,
        max_position=1.0,
        horizon_bars=horizon_bars,
        execution_delay_bars=delay,
    )


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("stride", [1, 3])
def test_starts_are_exactly_those_whose_horizon_fits_in_one_segment(delay: int, stride: int) -> None:
    dataset = make_dataset(delay=delay)
    expected = []
    first = 0
    for length in (9, 5, 12):
        expected += [first + o for o in range(0, length, stride) if o + 4 + delay < length]
        first += length
    assert dataset.horizon_starts(stride).tolist() == expected


@pytest.mark.parametrize("delay", [0, 2])
def test_a_horizon_holds_the_decisions_states_and_the_executions_prices(delay: int) -> None:
    dataset = make_dataset(delay=delay)
    starts = dataset.horizon_starts()
    batch = dataset.horizons(starts)
    for row, start in enumerate(starts):
        assert (batch.states[row] == dataset.states[start : start + 4]).all()
        assert (batch.mark[row] == dataset.mark[start + delay : start + delay + 5]).all()
        assert (batch.costs[row] == dataset.costs[start + delay : start + delay + 4]).all()


def test_consecutive_decisions_cover_every_row_once_and_restart_after_a_gap() -> None:
    starts, lengths = make_dataset().decision_starts()
    assert starts.tolist() == [0, 4, 8, 9, 13, 14, 18, 22]
    assert lengths.tolist() == [4, 4, 1, 4, 1, 4, 4, 4]


def test_a_date_range_is_half_open() -> None:
    dataset = make_dataset((9,))
    part = dataset.between(datetime(2022, 1, 1, 0, 20, tzinfo=UTC), datetime(2022, 1, 1, 0, 50, tzinfo=UTC))
    assert part.timestamps.astype("datetime64[m]").astype(str).tolist() == [
        "2022-01-01T00:20",
        "2022-01-01T00:30",
        "2022-01-01T00:40",
    ]


def test_too_few_rows_give_no_horizon() -> None:
    assert make_dataset((4,)).horizon_starts().size == 0
