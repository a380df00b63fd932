"""Columns, segments and the policy for locked and crossed books."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import (
    apply_book_policies,
    assign_segments,
    bar_column_names,
    book_columns,
    num_book_levels,
    side_matrix,
)

LEVELS = 5
START = datetime(2024, 1, 1, tzinfo=UTC)


def book(bids: list[list[float]], asks: list[list[float]]) -> pl.DataFrame:
    prices = {"bid": bids, "ask": asks}
    columns = {
        f"{side}{level + 1}_{field}": [row[level] if field == "price" else 1.0 for row in prices[side]]
        for level in range(LEVELS)
        for side in ("bid", "ask")
        for field in ("price", "size")
    }
    return pl.DataFrame(columns)


def ladder(best: float, step: float) -> list[float]:
    return [best + step * level for level in range(LEVELS)]


def test_book_columns_go_level_by_level() -> None:
    assert book_columns(1) == ["bid1_price", "bid1_size", "ask1_price", "ask1_size"]
    assert book_columns(6)[-1] == "ask6_size"
    assert bar_column_names(5)[:2] == ["timestamp", "open"]
    assert bar_column_names(5)[-2:] == ["book_source", "segment"]


def test_levels_are_counted_and_four_are_too_few() -> None:
    whole = pl.DataFrame({name: [1.0] for name in book_columns(7)})
    assert num_book_levels(whole) == 7
    with pytest.raises(MarketDataError, match=r"field ask5_size: a book needs at least 5 levels, found 4"):
        num_book_levels(whole.drop("ask5_size"))


@given(st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=30))
def test_a_segment_ends_exactly_where_a_bar_is_missing(steps: list[int]) -> None:
    times = [START + timedelta(minutes=10 * int(k)) for k in np.cumsum([0, *steps])]
    segments = assign_segments(pl.DataFrame({"timestamp": times}), bar_minutes=10)["segment"]
    assert segments.dtype == pl.Int32
    assert segments.to_list() == np.cumsum([0, *(step != 1 for step in steps)]).tolist()


def test_an_off_grid_bar_is_a_segment_of_its_own() -> None:
    minutes = [0.0, 10.0, 20.25, 30.0, 40.0]
    bars = pl.DataFrame({"timestamp": [START + timedelta(minutes=m) for m in minutes]})
    assert assign_segments(bars, bar_minutes=10)["segment"].to_list() == [0, 0, 1, 2, 2]


def test_a_locked_row_is_widened_to_its_own_tick_around_the_mid() -> None:
    bars = book([ladder(90265.1, -0.1)], [ladder(90265.1, 0.1)])
    widened = apply_book_policies(bars)
    assert widened["bid1_price"][0] == pytest.approx(90265.05)
    assert widened["ask1_price"][0] == pytest.approx(90265.15)


def test_a_crossed_row_costs_what_it_was_crossed_by() -> None:
    bars = book([ladder(101.0, -0.25)], [ladder(100.0, 0.25)])
    widened = apply_book_policies(bars)
    assert widened.select("bid1_price", "ask1_price").row(0) == (100.0, 101.0)
    bids, asks = side_matrix(widened, "bid", "price", LEVELS), side_matrix(widened, "ask", "price", LEVELS)
    assert (np.diff(bids) <= 0).all()
    assert (np.diff(asks) >= 0).all()


def test_a_locked_row_without_a_visible_tick_is_widened_by_a_basis_point() -> None:
    widened = apply_book_policies(book([ladder(200.0, 0.0)], [ladder(200.0, 0.0)]))
    assert widened["ask1_price"][0] - widened["bid1_price"][0] == pytest.approx(0.02)


def test_missing_levels_stay_missing_when_a_row_is_widened() -> None:
    bars = book([ladder(100.0, -1.0), ladder(99.0, -1.0)], [ladder(100.0, 1.0), ladder(100.0, 1.0)])
    bars = bars.with_columns(bid5_price=pl.lit(None, pl.Float64), bid5_size=pl.lit(None, pl.Float64))
    assert apply_book_policies(bars)["bid5_price"].to_list() == [None, None]


@given(
    st.lists(st.tuples(st.integers(95, 105), st.integers(95, 105), st.integers(1, 3)), min_size=1, max_size=8),
)
def test_no_spread_is_left_that_is_not_positive_and_good_rows_are_untouched(rows: list[tuple[int, int, int]]) -> None:
    bars = book([ladder(bid, -step) for bid, _, step in rows], [ladder(ask, step) for _, ask, step in rows])
    widened = apply_book_policies(bars)
    spread = widened["ask1_price"] - widened["bid1_price"]
    assert (spread > 0).all()
    good = bars["bid1_price"] < bars["ask1_price"]
    assert widened.filter(good).equals(bars.filter(good))
    mids = [(frame["bid1_price"] + frame["ask1_price"]) / 2 for frame in (bars, widened)]
    assert (mids[0] - mids[1]).abs().max() == pytest.approx(0.0)
