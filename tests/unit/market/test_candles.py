"""Candles become whole bars labelled by their end, and a bar reads nothing but its own candles."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.candles import bars_from_candles, read_parquet, times_from_epoch

FIVE_MINUTES_MS = 300_000
START_MS = 1_704_067_200_000  # 2024-01-01T00:00Z


def candles(rows: int, *, seed: int = 0, step_ms: int = FIVE_MINUTES_MS) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    close = 100 + np.cumsum(rng.normal(0, 0.1, rows))
    opening = np.append(100.0, close[:-1])
    return pl.DataFrame(
        {
            "open_time": START_MS + step_ms * np.arange(rows),
            "open": opening,
            "high": np.maximum(opening, close) + rng.random(rows),
            "low": np.minimum(opening, close) - rng.random(rows),
            "close": close,
            "volume": rng.gamma(2, 10, rows),
        }
    )


def test_milliseconds_and_microseconds_are_told_apart_row_by_row() -> None:
    times = times_from_epoch(pl.Series("open_time", [1735689599999, 1735689600000000]))
    assert times.dtype == pl.Datetime("us", "UTC")
    assert times.to_list() == [
        datetime(2024, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
        datetime(2025, 1, 1, tzinfo=UTC),
    ]


@pytest.mark.parametrize("value", [1735689600, 1735689600 * 10**9, 0, -5])
def test_a_date_outside_the_expected_span_is_refused(value: int) -> None:
    with pytest.raises(MarketDataError, match=r"row 1, field open_time: .* 2009 to 2099, got"):
        times_from_epoch(pl.Series("open_time", [START_MS, value]))


def test_two_candles_make_one_bar_labelled_by_its_end() -> None:
    rows = candles(4)
    bars = bars_from_candles(rows, bar_minutes=10)
    assert bars["timestamp"].to_list() == [
        datetime(2024, 1, 1, 0, 10, tzinfo=UTC),
        datetime(2024, 1, 1, 0, 20, tzinfo=UTC),
    ]
    assert bars["open"].to_list() == rows["open"].gather([0, 2]).to_list()
    assert bars["close"].to_list() == rows["close"].gather([1, 3]).to_list()
    assert bars["high"][0] == max(rows["high"][:2])
    assert bars["low"][1] == min(rows["low"][2:])
    assert bars["volume"][0] == rows["volume"][0] + rows["volume"][1]
    assert bars["taker_buy_volume"].to_list() == [None, None]
    assert bars["taker_buy_volume"].dtype == pl.Float64


def test_taker_volume_is_summed_and_null_where_one_candle_has_none() -> None:
    rows = candles(4).with_columns(taker_buy_volume=pl.Series([0.5, 0.25, None, 0.5]))
    assert bars_from_candles(rows, bar_minutes=10)["taker_buy_volume"].to_list() == [0.75, None]


def test_candles_of_the_bar_length_pass_through() -> None:
    rows = candles(3, step_ms=600_000)
    assert bars_from_candles(rows, bar_minutes=10)["close"].to_list() == rows["close"].to_list()


# Few enough that the candles left still stand five minutes apart for the most part.
@given(st.sets(st.integers(0, 35), max_size=8))
def test_a_missing_candle_makes_its_bar_missing_and_no_other(missing: set[int]) -> None:
    rows = candles(36)
    kept = rows[[row for row in range(36) if row not in missing]]
    whole = bars_from_candles(rows, bar_minutes=15)
    expected = [bar for bar in range(12) if not missing & {3 * bar, 3 * bar + 1, 3 * bar + 2}]
    assert bars_from_candles(kept, bar_minutes=15).equals(whole[expected])


def test_an_off_grid_candle_makes_its_bar_missing() -> None:
    rows = candles(6).with_columns(
        open_time=pl.Series([START_MS + FIVE_MINUTES_MS * k + (14_800 if k == 3 else 0) for k in range(6)])
    )
    assert bars_from_candles(rows, bar_minutes=10)["timestamp"].dt.minute().to_list() == [10, 30]


@given(cut=st.integers(1, 39), scale=st.floats(0.01, 100))
def test_changing_later_candles_changes_no_bit_of_earlier_bars(cut: int, scale: float) -> None:
    rows = candles(40)
    later = pl.int_range(pl.len()) > cut
    changed = rows.with_columns(
        pl.when(later).then(pl.col(name) * scale).otherwise(pl.col(name)).alias(name)
        for name in ("open", "high", "low", "close", "volume")
    )
    ended = (cut + 1) // 2
    before, after = (bars_from_candles(frame, bar_minutes=10).head(ended) for frame in (rows, changed))
    assert before.equals(after)
    assert before.equals(bars_from_candles(rows.head(cut + 1), bar_minutes=10).head(ended))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (pl.col("close") * float("nan"), "row 0, field close: price must be finite and positive, got close=nan"),
        (-pl.col("low"), "row 0, field low: price must be finite and positive"),
        (pl.col("high") * 0.5, "row 0, field high: high must be the highest price"),
        (pl.col("open_time").reverse(), "row 1, field open_time: open_time must be sorted"),
        (pl.lit(START_MS).alias("open_time"), "row 1, field open_time: open_time must not repeat"),
        (pl.lit("x").alias("volume"), "field volume: column must be numeric"),
    ],
)
def test_a_bad_candle_is_refused_with_its_place(change: pl.Expr, place: str) -> None:
    with pytest.raises(MarketDataError, match=place):
        bars_from_candles(candles(4).with_columns(change), bar_minutes=10)


def test_candles_that_do_not_divide_the_bar_are_refused() -> None:
    with pytest.raises(MarketDataError, match="must divide a bar of 10 minutes, got candles of 15 minutes"):
        bars_from_candles(candles(4, step_ms=900_000), bar_minutes=10)


def test_one_candle_does_not_tell_its_length() -> None:
    with pytest.raises(MarketDataError, match="two candles are needed"):
        bars_from_candles(candles(1), bar_minutes=10)


def test_a_missing_column_and_a_time_without_zone_are_refused() -> None:
    with pytest.raises(MarketDataError, match="field volume: a candle file must have this column"):
        bars_from_candles(candles(4).drop("volume"), bar_minutes=10)
    naive = candles(4).with_columns(pl.col("open_time").cast(pl.Datetime("ms")))
    with pytest.raises(MarketDataError, match="field open_time: open_time must be an integer or a time with a time"):
        bars_from_candles(naive, bar_minutes=10)


def test_missing_and_truncated_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MarketDataError, match=r"none.parquet: file does not exist"):
        read_parquet(tmp_path / "none.parquet")
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    candles(50).write_parquet(whole)
    cut.write_bytes(whole.read_bytes()[:200])
    with pytest.raises(MarketDataError, match=r"cut.parquet: not a readable Parquet file"):
        read_parquet(cut)
