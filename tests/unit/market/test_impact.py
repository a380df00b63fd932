"""The impact curve: its arithmetic, its calibration, and where the shipped numbers come from."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.impact import ImpactCurve, calibrate_impact_curve, liquidity_scales
from archetype_dagster.settings import Settings

CURVE = ImpactCurve(np.array([100.0, 200.0, 400.0]), np.array([1.0, 3.0, 3.0]))


def _excess(start: float, end: float, floor: float, curve: ImpactCurve = CURVE) -> float:
    return float(curve.excess_cost(np.array([start]), np.array([end]), np.array([floor]))[0]) * 1e4


def test_distance_is_linear_between_knots_and_capped():
    assert_allclose(CURVE.distance(np.array([0.0, 100.0, 150.0, 300.0, 1e9])), [1.0, 1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("start", "end", "floor", "area"),
    [
        (0.0, 100.0, 0.0, 100.0),
        (100.0, 200.0, 0.0, 200.0),
        (100.0, 200.0, 2.0, 25.0),
        (150.0, 200.0, 2.0, 25.0),
        (0.0, 1000.0, 0.0, 100 + 200 + 800 * 3),
        (0.0, 1000.0, 3.0, 0.0),
        (0.0, 1000.0, 50.0, 0.0),
        (500.0, 900.0, 1.0, 800.0),
        (70.0, 70.0, 0.0, 0.0),
    ],
)
def test_excess_cost_is_the_area_above_the_floor(start, end, floor, area):
    assert _excess(start, end, floor) == pytest.approx(area, abs=1e-9)


@given(start=st.floats(0, 1000), length=st.floats(0, 1000), floor=st.floats(0, 5))
def test_excess_cost_equals_numerical_integration(start, length, floor):
    sizes = start + length * (np.arange(4000) + 0.5) / 4000
    numerical = np.maximum(CURVE.distance(sizes) - floor, 0.0).mean() * length
    assert _excess(start, start + length, floor) == pytest.approx(numerical, rel=1e-3, abs=1e-3)


def test_scaling_stretches_the_sizes():
    half = CURVE.scaled(0.5)
    assert_array_equal(half.notional, [50.0, 100.0, 200.0])
    assert_array_equal(half.distance_bps, CURVE.distance_bps)
    with pytest.raises(ValueError, match="liquidity_scale must be positive, got liquidity_scale=0"):
        CURVE.scaled(0)


@pytest.mark.parametrize(
    ("notional", "distance", "message"),
    [
        ([1.0, 1.0], [0.0, 1.0], "strictly increasing"),
        ([0.0, 1.0], [0.0, 1.0], "strictly increasing"),
        ([1.0, 2.0], [1.0, 0.5], "never decrease"),
        ([1.0, 2.0], [-1.0, 0.5], "non-negative"),
        ([1.0, np.inf], [0.0, 1.0], "finite"),
        ([1.0], [0.0, 1.0], "equally long"),
        ([], [], "equally long"),
    ],
)
def test_knots_that_break_a_rule_are_refused(notional, distance, message):
    with pytest.raises(ValueError, match=message):
        ImpactCurve(np.array(notional), np.array(distance))


def _books(ask_sizes: list[list[float]]) -> pl.DataFrame:
    levels = len(ask_sizes[0])
    return pl.DataFrame(
        {
            "bids_px": [[99.99 - 0.02 * k for k in range(levels)] for _ in ask_sizes],
            "bids_qty": ask_sizes,
            "asks_px": [[100.01 + 0.02 * k for k in range(levels)] for _ in ask_sizes],
            "asks_qty": ask_sizes,
        }
    )


def test_calibration_is_the_median_over_snapshots_and_ends_where_half_the_books_end():
    # Levels at 1, 3, 5 bp hold 1000 quote units each in the usual snapshot; one odd snapshot is empty.
    books = _books([[10.0, 10.0, 10.0]] * 4 + [[0.0, 0.0, 1e-6]])
    curve = calibrate_impact_curve([books], smallest_notional=100.0, largest_notional=1e5)
    assert curve.notional[-1] < 3000 < curve.notional[-1] * 10 ** (1 / 8)
    expected = np.where(curve.notional <= 1000, 1.0, np.where(curve.notional <= 2000, 3.0, 5.0))
    assert_allclose(curve.distance_bps, expected, rtol=1e-9)


def test_calibration_without_depth_says_so():
    with pytest.raises(MarketDataError, match="no book snapshot"):
        calibrate_impact_curve([])
    with pytest.raises(MarketDataError, match="shallower than the smallest size, 10000 quote units"):
        calibrate_impact_curve([_books([[0.1, 0.1]])])


def test_shipped_curve_is_what_the_calibration_gives(shared_data):
    deep = pl.read_parquet(shared_data / "book" / "binance_spot_btcusdt_1000levels_2026-02-16.parquet")
    curve = calibrate_impact_curve([deep])
    shipped = ImpactCurve.default()
    assert_allclose(shipped.notional, curve.notional, rtol=1e-5)
    assert_allclose(shipped.distance_bps, curve.distance_bps, rtol=1e-5)


def test_liquidity_is_the_median_share_of_the_reference_pairs_traded_notional():
    times = pl.Series("open_time", [1, 2, 3, 4])
    btc = pl.DataFrame({"open_time": times, "close": [10.0] * 4, "volume": [1.0, 1.0, 1.0, 0.0]})
    dot = pl.DataFrame({"open_time": times[:3], "close": [1.0] * 3, "volume": [1.0, 5.0, 2.0]})
    assert liquidity_scales({"BTC": btc, "DOT": dot}, reference="BTC") == {"BTC": 1.0, "DOT": 0.2}


def test_shipped_liquidity_scales_are_what_the_training_span_of_real_candles_gives(shared_data):
    settings = Settings()
    end = settings.splits.train_end.timestamp() * 1000
    candles = {
        name: pl.read_parquet(shared_data / "spot_5m" / f"{name}USDT.parquet").filter(pl.col("open_time") < end)
        for name in settings.pairs
    }
    measured = liquidity_scales(candles, reference="BTC")
    assert {name: pair.liquidity_scale for name, pair in settings.pairs.items()} == measured
