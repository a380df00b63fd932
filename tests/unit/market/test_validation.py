"""Fatal faults are refused with their place; the rest is counted."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.market.validation import validate_bars
from archetype_dagster.settings import load_settings

ROWS = 40
START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def bars() -> pl.DataFrame:
    span = {
        "market.synthetic.start": START,
        "market.synthetic.end": START + timedelta(minutes=10 * ROWS),
        "market.book_levels": 6,
    }
    settings = load_settings("smoke", span)
    return synthetic_bars(settings.market, settings.pair("ETH"), pair_name="ETH", seed=3)


def with_value(bars: pl.DataFrame, row: int, field: str, value: Any) -> pl.DataFrame:
    column = bars[field].to_list()
    column[row] = value
    return bars.with_columns(pl.Series(field, column, dtype=bars.schema[field]))


def test_good_bars_are_described(bars: pl.DataFrame) -> None:
    report = validate_bars(bars)
    assert (report.rows, report.segments, report.missing_bars, report.book_levels) == (ROWS, 1, 0, 6)
    assert report.first_timestamp == START
    assert report.last_timestamp == START + timedelta(minutes=10 * (ROWS - 1))
    assert report.book_sources == ("modelled",)
    assert report.gap_table().is_empty()
    assert (report.off_grid_rows, report.zero_volume_rows, report.locked_rows, report.crossed_rows) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("row", "field", "value", "rule"),
    [
        (7, "close", float("nan"), "price must be finite and positive, got close=nan"),
        (0, "open", None, "price must be finite and positive, got open=None"),
        (39, "low", -1.0, "price must be finite and positive, got low=-1.0"),
        (5, "low", 0.0, "price must be finite and positive, got low=0.0"),
        (5, "high", 1.0, "high must be the highest price, got high=1.0"),
        (5, "low", 1e6, "low must be the lowest price, got low=1000000.0|high must be the highest price"),
        (4, "volume", -0.5, "volume must be finite and not negative, got volume=-0.5"),
        (4, "volume", float("inf"), "volume must be finite and not negative"),
        (4, "taker_buy_volume", 1e9, "taker_buy_volume must lie between 0 and volume"),
        (9, "bid3_price", float("nan"), "price must be finite and positive, got bid3_price=nan"),
        (9, "ask1_price", -2.0, "price must be finite and positive, got ask1_price=-2.0"),
        (9, "ask2_size", -1.0, "size must be finite and not negative, got ask2_size=-1.0"),
        (9, "ask2_size", None, "a level must have a size, got ask2_size=None"),
        (9, "bid6_price", None, "a size must have a price"),
        (9, "bid4_price", 1e7, "level 4 must not be priced better than level 3"),
        (9, "ask4_price", 1.0, "level 4 must not be priced better than level 3"),
        (3, "book_source", "guessed", "book_source must be one of observed, modelled, got book_source=guessed"),
        (3, "timestamp", None, "timestamp must not be null"),
        (3, "timestamp", START + timedelta(minutes=20), "timestamp must not repeat"),
        (3, "timestamp", START + timedelta(minutes=15), "timestamp must be sorted"),
    ],
)
def test_a_fatal_fault_names_row_field_and_rule(
    bars: pl.DataFrame, row: int, field: str, value: object, rule: str
) -> None:
    with pytest.raises(MarketDataError, match=rule) as caught:
        validate_bars(with_value(bars, row, field, value))
    assert caught.value.row == row
    assert caught.value.field is not None
    assert str(caught.value).startswith(f"row {row}, field ")


def test_a_level_behind_a_missing_one_is_refused(bars: pl.DataFrame) -> None:
    hole = with_value(with_value(bars, 2, "bid3_price", None), 2, "bid3_size", None)
    with pytest.raises(MarketDataError, match="row 2, field bid4_price: level 4 must not be there without level 3"):
        validate_bars(hole)


@pytest.mark.parametrize("field", ["timestamp", "volume", "taker_buy_volume", "book_source", "ask5_price"])
def test_a_missing_column_is_named(bars: pl.DataFrame, field: str) -> None:
    with pytest.raises(MarketDataError, match=rf"field {field}"):
        validate_bars(bars.drop(field))


def test_times_without_zone_or_in_other_units_are_refused(bars: pl.DataFrame) -> None:
    naive = bars.with_columns(pl.col("timestamp").dt.replace_time_zone(None))
    with pytest.raises(MarketDataError, match="field timestamp: column must have type"):
        validate_bars(naive)


def test_no_rows_and_a_senseless_bar_length_are_refused(bars: pl.DataFrame) -> None:
    with pytest.raises(MarketDataError, match="at least one row is needed, got none"):
        validate_bars(bars.clear())
    with pytest.raises(ValueError, match="bar_minutes must be positive, got bar_minutes=0"):
        validate_bars(bars, bar_minutes=0)


def test_bars_that_never_end_on_the_grid_are_refused(bars: pl.DataFrame) -> None:
    shifted = bars.with_columns(pl.col("timestamp") + timedelta(minutes=3))
    with pytest.raises(MarketDataError, match="bars must end on multiples of 10 minutes and none does"):
        validate_bars(shifted)


def test_a_gap_and_an_off_grid_bar_are_reported(bars: pl.DataFrame) -> None:
    times = [START, START + timedelta(minutes=10), START + timedelta(minutes=30, seconds=14.8)]
    irregular = bars.head(3).with_columns(pl.Series("timestamp", times, dtype=pl.Datetime("us", "UTC")))
    report = validate_bars(irregular)
    assert report.off_grid_rows == 1
    assert report.segments == 2
    # 00:20 and 00:30 are absent.
    assert report.gap_table().rows() == [(times[1], times[2], 2)]


def test_missing_bars_are_counted_gap_by_gap(bars: pl.DataFrame) -> None:
    kept = [row for row in range(ROWS) if row not in {5, 20, 21, 22}]
    report = validate_bars(bars[kept])
    assert (report.segments, report.missing_bars) == (3, 4)
    assert report.gap_table()["missing_bars"].to_list() == [1, 3]


def test_locked_crossed_empty_and_silent_rows_are_counted_not_refused(bars: pl.DataFrame) -> None:
    faulty = with_value(bars, 1, "bid1_price", bars["ask1_price"][1])
    faulty = with_value(faulty, 2, "bid1_price", bars["ask1_price"][2] + 1)
    faulty = with_value(faulty, 3, "bid1_size", 0.0)
    faulty = with_value(faulty, 4, "volume", 0.0)
    faulty = with_value(faulty, 4, "taker_buy_volume", 0.0)
    for level in range(1, 7):
        faulty = with_value(faulty, 5, f"ask{level}_price", None)
        faulty = with_value(faulty, 5, f"ask{level}_size", None)
    report = validate_bars(faulty)
    assert (report.locked_rows, report.crossed_rows, report.empty_side_rows, report.zero_volume_rows) == (1, 1, 2, 1)


def test_the_report_is_plain_json(bars: pl.DataFrame) -> None:
    text = json.dumps(validate_bars(bars[[0, 1, 5]]).as_dict())
    assert json.loads(text)["gaps"][0]["missing_bars"] == 3
