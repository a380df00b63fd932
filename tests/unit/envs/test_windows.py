from collections.abc import Callable

import numpy as np
import pytest

from archetype_dagster.envs import LookbackWindows
from archetype_dagster.market.dataset import MarketDataset


def test_windows_end_on_their_row_and_never_leave_its_segment(learnable_split: Callable[..., MarketDataset]) -> None:
    dataset = learnable_split(segments=(6, 5))
    windows = LookbackWindows(dataset, 4).at(np.array([1, 5, 6, 9]))
    assert windows.shape == (4, 4, dataset.num_features + 1)
    for window, rows in zip(windows, ([0, 1], [2, 3, 4, 5], [6], [6, 7, 8, 9]), strict=True):
        np.testing.assert_array_equal(window[: len(rows), :-1], dataset.states[rows])
        np.testing.assert_array_equal(window[:, -1], np.arange(4) < len(rows))
        assert not window[len(rows) :].any()


def test_a_window_needs_a_bar(learnable_split: Callable[..., MarketDataset]) -> None:
    with pytest.raises(ValueError, match="lookback_bars=0"):
        LookbackWindows(learnable_split(), 0)
