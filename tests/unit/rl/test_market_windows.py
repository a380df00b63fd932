"""What a network reads of a row: never another segment, never a later row, the same whatever the portions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl import market_windows
from archetype_dagster.rl.market_windows import MarketWindows

Split = Callable[..., MarketDataset]


def window(dataset: MarketDataset, row: int, lookback: int) -> np.ndarray:
    """Reference: row by row backwards, until the segment ends."""
    result = np.zeros((lookback, dataset.num_features), dtype=np.float32)
    for back in range(min(lookback, row + 1)):
        if dataset.segment[row - back] != dataset.segment[row]:
            break
        result[lookback - 1 - back] = dataset.states[row - back]
    return result


@settings(max_examples=25, deadline=None)
@given(segments=st.lists(st.integers(1, 12), min_size=1, max_size=5), lookback=st.integers(2, 9))
def test_a_window_ends_on_its_row_and_is_zero_before_its_segment(segments: list[int], lookback: int) -> None:
    rng = np.random.default_rng(len(segments))
    rows = sum(segments)
    dataset = MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=rng.normal(size=(rows, 3)).astype(np.float32),
        mark=np.ones(rows),
        costs=np.zeros((rows, 3, 3)),
        segment=np.repeat(np.arange(len(segments)), segments).astype(np.int32),
        max_position=1.0,
        horizon_bars=4,
    )
    found = MarketWindows(dataset, lookback).at(torch.arange(rows)).numpy()
    np.testing.assert_array_equal(found, [window(dataset, row, lookback) for row in range(rows)])
    np.testing.assert_array_equal(found[:, -1], dataset.states)


def test_rows_of_any_shape_are_gathered_and_a_lookback_of_one_is_the_state(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(9, 5))
    rows = torch.tensor([[3, 9], [13, 0]])
    np.testing.assert_array_equal(MarketWindows(dataset, 1).at(rows), dataset.states[rows.numpy()])
    pairs = MarketWindows(dataset, 4).at(rows)
    assert pairs.shape == (2, 2, 4, dataset.num_features)
    np.testing.assert_array_equal(pairs[1, 0], window(dataset, 13, 4))


def test_portions_bound_the_windows_held_at_once_and_leave_out_no_row(
    learnable_split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market_windows, "_BARS_AT_ONCE", 24)
    dataset, sizes = learnable_split(), []

    def newest(windows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(windows))
        return windows[:, -1]

    everything = MarketWindows(dataset, 5).through(newest, torch.arange(len(dataset)))
    np.testing.assert_array_equal(everything, dataset.states)
    assert max(sizes) == 24 // 5
    assert [len(part) for part in MarketWindows(dataset, 1).portions(torch.arange(30))] == [30]
    assert len(next(MarketWindows(dataset, 300).portions(torch.arange(30)))) == 1


def test_a_window_needs_a_bar(learnable_split: Split) -> None:
    with pytest.raises(ValueError, match="lookback_bars=0"):
        MarketWindows(learnable_split(), 0)
