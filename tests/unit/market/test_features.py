"""Features: values worked out by hand, warm-up, degenerate books, and no bit from the future."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.features import (
    FEATURE_FORMULAS,
    FEATURE_NAMES,
    WARMUP_BARS,
    compute_features,
    feature_rows,
)

PRICED = ("wap_1", "wap_2", "wap_balance", "buy_spread", "sell_spread", "sell_vwap", "buy_vwap")
SIDE_COLUMNS = {s: [f"{s}{i}_{f}" for i in range(1, 6) for f in ("price", "size")] for s in ("bid", "ask")}


def _set(bars: pl.DataFrame, row: int, **values: float | None) -> pl.DataFrame:
    here = pl.int_range(pl.len()) == row
    return bars.with_columns(
        pl.when(here).then(pl.lit(value, dtype=pl.Float64)).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def _null_side(bars: pl.DataFrame, row: int, side: str) -> pl.DataFrame:
    return _set(bars, row, **dict.fromkeys(SIDE_COLUMNS[side]))


@pytest.fixture
def known_row(random_bars) -> pl.DataFrame:
    """61 bars whose last one is easy to compute with."""
    sizes = {"bid": (1, 2, 3, 4, 10), "ask": (2, 2, 2, 2, 2)}
    book = {f"bid{i}_price": 100.0 - i for i in range(1, 6)} | {f"ask{i}_price": 100.0 + i for i in range(1, 6)}
    book |= {f"{side}{i + 1}_size": float(size) for side in sizes for i, size in enumerate(sizes[side])}
    candle = {"open": 100.0, "high": 104.0, "low": 96.0, "close": 102.0, "volume": 7.0}
    return _set(random_bars(61), 60, **candle, **book)


def test_names_are_the_papers_45_in_order():
    assert len(FEATURE_NAMES) == len(set(FEATURE_NAMES)) == 45
    assert FEATURE_NAMES[:3] == ("volume", "bid1_size_n", "bid2_size_n")
    assert FEATURE_NAMES[11:21] == (
        "wap_1",
        "wap_2",
        "wap_balance",
        "buy_spread",
        "sell_spread",
        "buy_volume",
        "sell_volume",
        "volume_imbalance",
        "price_spread",
        "sell_vwap",
    )
    assert FEATURE_NAMES[22:27] == (
        "log_return_bid1_price",
        "log_return_bid2_price",
        "log_return_ask1_price",
        "log_return_ask2_price",
        "log_return_wap_1",
    )
    assert FEATURE_NAMES[27:36] == ("kmid", "klen", "kmid2", "kup", "kup2", "klow", "klow2", "ksft", "ksft2")
    assert FEATURE_NAMES[36] == "ask1_price_trend_60"
    assert FEATURE_NAMES[44] == "volume_trend_60"
    assert all("[" in formula for formula in FEATURE_FORMULAS.values())


def test_single_bar_features_worked_out_by_hand(known_row):
    row = compute_features(known_row, scale="raw").row(0, named=True)
    expected = {
        "volume": 7.0,
        "bid1_size_n": 0.05,
        "bid5_size_n": 0.5,
        "ask3_size_n": 0.2,
        "wap_1": (99 * 2 + 101 * 1) / 3,
        "wap_2": (98 * 2 + 102 * 2) / 4,
        "wap_balance": (99 * 2 + 101 * 1) / 3 - 100,
        "buy_spread": 4.0,
        "sell_spread": 4.0,
        "buy_volume": 20.0,
        "sell_volume": 10.0,
        "volume_imbalance": 1 / 3,
        "price_spread": 0.02,
        "sell_vwap": 103.0,
        "buy_vwap": (99 + 2 * 98 + 3 * 97 + 4 * 96 + 10 * 95) / 20,
        "kmid": 0.02,
        "klen": 0.08,
        "kmid2": 0.25,
        "kup": 0.02,
        "kup2": 0.25,
        "klow": 0.04,
        "klow2": 0.5,
        "ksft": 0.04,
        "ksft2": 0.5,
    }
    assert {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()} == {
        name: row[name] for name in expected
    }


def test_log_returns_and_trends_look_back(known_row):
    row = compute_features(known_row).row(0, named=True)
    for name in ("bid1_price", "bid2_price", "ask1_price", "ask2_price"):
        now, before = known_row[name][60], known_row[name][59]
        assert row[f"log_return_{name}"] == pytest.approx(np.log(now / before), rel=1e-12)
    for name in ("ask1_price", "bid1_price", "volume"):
        window = known_row[name].to_numpy()[1:61]
        assert row[f"{name}_trend_60"] == pytest.approx((window[-1] - window.mean()) / window.std(), rel=1e-9)


def test_relative_scale_divides_price_levels_and_differences_by_the_mid(random_bars):
    bars = random_bars(100)
    raw, relative = compute_features(bars, scale="raw"), compute_features(bars)
    mid = 0.5 * (bars["bid1_price"] + bars["ask1_price"]).to_numpy()[WARMUP_BARS:]
    for name in FEATURE_NAMES:
        divisor = mid if name in PRICED else 1.0
        assert_array_equal(relative[name].to_numpy(), raw[name].to_numpy() / divisor)


def test_each_segment_has_its_own_warm_up(random_bars):
    bars = random_bars(200, gap_at=90)
    features = compute_features(bars)
    expected = [*range(60, 90), *range(150, 200)]
    assert features["timestamp"].to_list() == bars["timestamp"].gather(expected).to_list()
    assert_array_equal(feature_rows(bars), expected)
    alone = compute_features(bars[90:])
    assert_array_equal(features[30:].drop("timestamp").to_numpy(), alone.drop("timestamp").to_numpy())


def test_too_few_bars_give_an_empty_table_with_every_column(random_bars):
    for rows in (0, 1, 60):
        features = compute_features(random_bars(60)[:rows])
        assert features.height == 0
        assert features.columns == ["timestamp", *FEATURE_NAMES]


def test_without_segments_only_even_spacing_is_accepted(random_bars):
    regular, gapped = random_bars(80).drop("segment"), random_bars(80, gap_at=40).drop("segment")
    assert compute_features(regular).equals(compute_features(random_bars(80)))
    with pytest.raises(MarketDataError, match="row 40, field timestamp: bars are not evenly spaced"):
        compute_features(gapped)


def test_unsorted_bars_are_refused(random_bars):
    bars = random_bars(70)
    with pytest.raises(MarketDataError, match="row 31, field timestamp: must grow"):
        compute_features(pl.concat([bars[:31], bars[30:]]))


@pytest.mark.parametrize("column", ["open", "volume", "bid3_price"])
def test_unusable_numbers_are_named(random_bars, column):
    with pytest.raises(MarketDataError, match=f"row 5, field {column}: must be"):
        compute_features(_set(random_bars(70), 5, **{column: -1.0}))


def test_null_candles_are_refused_not_filled(random_bars):
    with pytest.raises(MarketDataError, match="row 5, field close"):
        compute_features(_set(random_bars(70), 5, close=None))


def test_empty_depth_volume_and_range_have_defined_values(random_bars):
    empty = {f"{side}{i}_size": 0.0 for side in ("bid", "ask") for i in range(1, 6)}
    bars = _set(random_bars(80), 70, volume=0.0, open=100.0, high=100.0, low=100.0, close=100.0, **empty)
    features = compute_features(bars, scale="raw")
    assert np.isfinite(features.drop("timestamp").to_numpy()).all()
    row = features.row(70 - WARMUP_BARS, named=True)
    for name in ("volume", "volume_imbalance", "bid1_size_n", "ask5_size_n", "kmid2", "kup2", "klow2", "ksft2", "klen"):
        assert row[name] == 0.0
    assert row["buy_vwap"] == bars["bid1_price"][70]
    assert row["sell_vwap"] == bars["ask1_price"][70]
    assert row["wap_2"] == pytest.approx((bars["bid2_price"][70] + bars["ask2_price"][70]) / 2)


def test_an_empty_side_is_priced_at_the_mark_and_leaves_later_bars_alone(random_bars):
    bars = random_bars(200)
    holed = _null_side(bars, 70, "ask")
    features, untouched = compute_features(holed, scale="raw"), compute_features(bars, scale="raw")
    assert np.isfinite(features.drop("timestamp").to_numpy()).all()
    row = features.row(70 - WARMUP_BARS, named=True)
    assert row["volume_imbalance"] == 1.0
    assert row["sell_volume"] == row["sell_spread"] == row["ask1_size_n"] == 0.0
    assert row["sell_vwap"] == max(bars["close"][70], bars["bid1_price"][70])
    single_bar = [name for name in FEATURE_NAMES if not name.endswith("_trend_60")]
    assert features[72 - WARMUP_BARS :].select(single_bar).equals(untouched[72 - WARMUP_BARS :].select(single_bar))
    assert features[130 - WARMUP_BARS :].equals(untouched[130 - WARMUP_BARS :])


def test_a_missing_quote_is_never_taken_from_a_later_bar(random_bars):
    bars = _null_side(_null_side(random_bars(64), 61, "ask"), 62, "ask")
    later = _set(bars, 63, **{f"ask{i}_price": 5000.0 + i for i in range(1, 6)})
    assert compute_features(bars)[:3].equals(compute_features(later)[:3])


def test_float_residue_in_a_constant_window_is_no_trend(random_bars):
    rng = np.random.default_rng(0)
    # A spread of exactly 0.04 in decimals, but not in binary, at prices that wander.
    base = np.round(68_000 + np.cumsum(rng.normal(0, 5, 100)), 2)
    bars = random_bars(100).with_columns(
        pl.Series(f"{side}{i}_price", np.round(base + sign * 0.01 * i, 2))
        for side, sign in (("bid", -1), ("ask", 1))
        for i in range(1, 6)
    )
    features = compute_features(bars)
    assert features["sell_spread_trend_60"].abs().max() < 1e-2
    assert features["ask1_price_trend_60"].abs().max() > 1


def test_the_last_61_bars_alone_give_the_same_bits(random_bars):
    bars = random_bars(150)
    whole = compute_features(bars)
    for row in (60, 61, 100, 149):
        assert compute_features(bars[row - WARMUP_BARS : row + 1]).equals(
            whole[row - WARMUP_BARS : row - WARMUP_BARS + 1]
        )


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(60, 178), seed=st.integers(0, 2**16), scale=st.sampled_from(["relative", "raw"]), data=st.data())
def test_nothing_after_a_bar_changes_a_bit_of_its_features(random_bars, cut, seed, scale, data):
    bars = random_bars(180, seed=1, gap_at=75)
    changed = random_bars(180, seed=seed + 2, gap_at=75).with_columns(
        pl.selectors.float() * pl.lit(data.draw(st.sampled_from([1e-3, 0.5, 3.0, 1e6])))
    )
    future = pl.concat([bars[: cut + 1], changed[cut + 1 :]])
    if data.draw(st.booleans()):
        future = _null_side(future, 179, "ask")
    expected = compute_features(bars, scale=scale).filter(pl.col("timestamp") <= bars["timestamp"][cut])
    seen = compute_features(future, scale=scale).filter(pl.col("timestamp") <= bars["timestamp"][cut])
    prefix = compute_features(bars[: cut + 1], scale=scale)
    assert expected.equals(seen)
    assert expected.equals(prefix)


zero_or = st.sampled_from([0.0, 1e-9, 1.0, 1e9])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(zero_or, min_size=20, max_size=20),
    volume=zero_or,
    flat_price=st.booleans(),
    empty=st.sampled_from([(), ("bid",), ("ask",), ("bid", "ask")]),
    locked=st.booleans(),
    row=st.integers(55, 69),
)
def test_every_feature_of_every_book_is_finite(random_bars, seed, sizes, volume, flat_price, empty, locked, row):
    bars = random_bars(70, seed=seed)
    names = [f"{side}{i}_size" for side in ("bid", "ask") for i in range(1, 6)]
    bars = _set(bars, row, volume=volume, **dict(zip(names, sizes[:10], strict=True)))
    if flat_price:
        bars = bars.with_columns(pl.lit(100.0).alias(name) for name in ("open", "high", "low", "close"))
    if locked:
        bars = _set(bars, row, ask1_price=bars["bid1_price"][row])
    for side in empty:
        bars = _null_side(bars, row, side)
    features = compute_features(bars).drop("timestamp").to_numpy()
    assert np.isfinite(features).all()


def test_constant_market_has_no_trend_and_no_return(random_bars):
    bars = random_bars(61)
    still = bars.with_columns(pl.col(name).first() for name in bars.columns if name not in ("timestamp", "segment"))
    row = compute_features(still).row(0, named=True)
    assert_allclose([row[name] for name in FEATURE_NAMES if "trend" in name or "log_return" in name], 0.0, atol=0)


def test_unknown_scale_is_refused(random_bars):
    with pytest.raises(ValueError, match="scale must be 'relative' or 'raw', got scale='log'"):
        compute_features(random_bars(61), scale="log")


def test_a_missing_column_is_named(random_bars):
    with pytest.raises(MarketDataError, match="field high: missing column; the first ones are timestamp, open"):
        compute_features(random_bars(61).drop("high"))
