"""Windows partition the test span, training never reaches into them, and the stitched account is one ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from archetype_dagster.backtest.ledger import reconcile
from archetype_dagster.errors import SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.pipeline.inputs import bars_of
from archetype_dagster.settings import Settings
from archetype_dagster.studies.runs import run_study
from archetype_dagster.studies.walk_forward import stitched, walk_forward_runs, window_settings
from archetype_dagster.types import FLAT

START = datetime(2023, 1, 1, tzinfo=UTC)
BAR = timedelta(minutes=10)


def market(rows: int, horizon: int) -> MarketDataset:
    times = np.datetime64(START.replace(tzinfo=None), "us") + np.arange(rows) * np.timedelta64(10, "m")
    ones = np.ones(rows)
    costs, segment = np.zeros((rows, 3, 3)), np.zeros(rows, dtype=np.int32)
    return MarketDataset("ETH", times, ones[:, None].astype(np.float32), ones, costs, segment, 1.0, horizon)


@given(
    lengths=st.tuples(*[st.integers(40, 90)] * 3, st.integers(0, 12), st.integers(0, 12)),
    windows=st.integers(1, 4),
    horizon=st.integers(2, 8),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_no_training_or_validation_bar_touches_its_test_window(lengths, windows, horizon):
    train, validation, test, first_gap, second_gap = lengths
    borders = np.cumsum([0, train, first_gap, validation, second_gap, test]).tolist()
    names = ("train_start", "train_end", "validation_start", "validation_end", "test_start", "test_end")
    base = Settings().changed(
        {
            **{f"splits.{name}": START + border * BAR for name, border in zip(names, borders, strict=True)},
            "planner.horizon_bars": horizon,
            "studies.walk_forward_windows": windows,
        }
    )
    assume(test // windows > 2 * horizon)
    dataset = market(borders[-1], horizon)
    end = base.splits.test_start
    for window in range(windows):
        shifted = window_settings(base, window)
        parts = split_dataset(dataset, shifted.splits)
        assert shifted.splits.test_start == end
        assert parts.test.timestamps[0] >= np.datetime64(end.replace(tzinfo=None), "us")
        for before, after in ((parts.train, parts.validation), (parts.validation, parts.test)):
            assert after.timestamps[0] - before.timestamps[-1] > horizon * np.timedelta64(10, "m")
        assert shifted.splits.train_end - shifted.splits.train_start == train * BAR
        end = shifted.splits.test_end
    assert end == base.splits.test_end


def test_windows_that_do_not_exist_or_hold_no_horizon_are_refused(tiny):
    with pytest.raises(SettingsError, match=r"window must lie in 0\.\.2, got window=3"):
        window_settings(tiny(), 3)
    with pytest.raises(SettingsError, match="walk_forward_windows, window 0: the test split"):
        walk_forward_runs(tiny({"studies.walk_forward_windows": 12, "planner.horizon_bars": 24}))
    few_bars = tiny().splits.test_start + timedelta(minutes=50)
    with pytest.raises(SettingsError, match="leaves no bar"):
        walk_forward_runs(tiny({"studies.walk_forward_windows": 12, "splits.test_end": few_bars}))
    with pytest.raises(SettingsError, match="less than or equal to 12, got 13"):
        tiny({"studies.walk_forward_windows": 13})


@pytest.fixture(scope="module", params=["carry", "settle"])
def walked(tiny, shared_cache, request):
    settings = tiny({"execution.horizon_boundary": request.param})
    results = list(run_study(walk_forward_runs(settings), "ETH", shared_cache).values())
    bars = bars_of(shared_cache.artifact("market_bars", settings, "ETH"))
    return settings, results, bars, stitched(results, bars, settings, "ETH")


def test_the_stitched_account_is_one_ledger_over_the_whole_span(walked):
    settings, results, bars, ledger = walked
    assert reconcile(ledger).passed
    test_bars = (bars["timestamp"] >= settings.splits.test_start).sum()
    assert len(ledger) == sum(len(result.test.timestamps) for result in results) == test_bars
    assert ledger.initial_capital == 100 * ledger.mark[0]
    assert ledger.traded[-1] == 0
    # The first window starts flat from the same capital, so its own account is the stitched one's beginning.
    own = results[0].test.accounts["full"].net_value
    np.testing.assert_array_equal(own[:-1], ledger.net_value_path[: len(own) - 1])


def test_a_position_held_over_a_border_is_closed_at_its_cost_on_the_first_bar_after_it(walked):
    settings, results, _, ledger = walked
    horizon, first, held = settings.planner.horizon_bars, 0, 0
    for result in results[:-1]:
        first += len(result.test.timestamps)
        assert (ledger.action[first : first + horizon] == FLAT).all()
        assert not ledger.position[first : first + horizon].any()
        held += ledger.position[first - 1] != 0
        assert (ledger.fee[first] > 0) == (ledger.position[first - 1] != 0)
    assert held


def test_windows_out_of_order_or_missing_are_refused(walked):
    settings, results, bars, _ = walked
    for wrong in (results[::-1], results[1:], []):
        with pytest.raises(ValueError, match=r"must cover the \d+ test bars"):
            stitched(wrong, bars, settings, "ETH")
