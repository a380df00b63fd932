"""Raw records become bars that know nothing of the future, and each fault is met by its policy and counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import record_batches
from archetype_dagster.market.bar_builder import BuiltBars, bars_of, build_bars, raw_bars
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import CANDLES_SCHEMA, TRADES_SCHEMA, RawMarket, books_schema
from archetype_dagster.market.raw_bars import RawBars
from archetype_dagster.settings import IngestionSettings, MarketSettings

START = datetime(2024, 1, 1, tzinfo=UTC)
LEVELS = 5
Book = dict[str, float | None]


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def book(mid: float = 100.0, half_spread: float = 0.5, size: float = 1.0) -> Book:
    levels: Book = {}
    for level in range(1, LEVELS + 1):
        for side, sign in (("bid", -1), ("ask", 1)):
            levels[f"{side}{level}_price"] = mid + sign * (half_spread + level - 1)
            levels[f"{side}{level}_size"] = size
    return levels


def books(rows: Sequence[tuple[float, Book]]) -> pl.LazyFrame:
    return pl.LazyFrame([{"timestamp": at(time), **levels} for time, levels in rows], schema=books_schema(LEVELS))


def trades(rows: Sequence[tuple[Any, ...]]) -> pl.LazyFrame:
    """Rows of minutes, price, size, taker_buy and, where wanted, trade_id."""
    named = [(at(time), price, size, taker, *(rest or [None])) for time, price, size, taker, *rest in rows]
    return pl.LazyFrame(named, schema=TRADES_SCHEMA, orient="row")


def candles(rows: Sequence[tuple[float, float]], *, minutes: float = 5) -> pl.LazyFrame:
    """Flat candles of (start, price) with a volume of 1."""
    named = [(at(start), at(start + minutes), *[price] * 4, 1.0, 0.5) for start, price in rows]
    return pl.LazyFrame(named, schema=CANDLES_SCHEMA, orient="row")


def built(raw: RawMarket, **policies: Any) -> BuiltBars:
    return build_bars(raw, MarketSettings(ingestion=IngestionSettings(**policies)))


# Two bars of trades that begin and end at the bars' borders, with both sides taking.
TRADES = [(0, 100.0, 1.0, True), (9.9, 101.0, 2.0, False), (10, 102.0, 1.0, True), (19.9, 103.0, 4.0, False)]
BOOKS = [(9.5, book(100)), (19.5, book(110))]


def ends(bars: pl.DataFrame) -> list[float]:
    return [(time - START).total_seconds() / 60 for time in bars["timestamp"]]


def test_a_book_at_a_bars_very_end_is_of_the_bar_and_one_after_it_is_not() -> None:
    seen = [(9.99, book(100)), (10, book(101)), (10 + 1e-6, book(102)), (19.99, book(103))]
    bars = built(RawMarket(books=books(seen), trades=trades(TRADES))).bars
    assert ends(bars) == [10, 20]
    assert bars["bid1_price"].to_list() == [100.5, 102.5]
    assert bars["book_source"].unique().to_list() == ["observed"]


def test_a_trade_at_a_bars_very_end_is_of_the_next_bar() -> None:
    bars = built(RawMarket(trades=trades(TRADES))).bars
    assert bars.drop("timestamp").rows() == [
        (100.0, 101.0, 100.0, 101.0, 3.0, 1.0),
        (102.0, 103.0, 102.0, 103.0, 5.0, 1.0),
    ]


def test_books_older_than_the_limit_leave_a_gap_and_are_counted() -> None:
    raw = RawMarket(books=books([(9.5, book(100))]), trades=trades(TRADES))
    bars, report = built(raw)
    assert ends(bars) == [10]
    assert report.count("stale_book", "bars") == 1
    assert report.dropped_bars == 1
    kept = built(raw, stale_book="keep").bars
    assert kept["bid1_price"].to_list() == [99.5, 99.5]


def test_a_bar_before_the_first_book_is_missing_and_never_filled_from_later_ones() -> None:
    raw = RawMarket(books=books([(10 + 1e-6, book(100)), (19.5, book(101))]), trades=trades(TRADES))
    bars, report = built(raw)
    assert ends(bars) == [20]
    assert report.count("missing_book", "bars") == 1
    with pytest.raises(
        MarketDataError, match="missing_book 'refuse': 1 bars have this fault, the first at 2024-01-01 00:10"
    ):
        built(raw, missing_book="refuse")


def test_bars_at_which_the_recording_begins_or_ends_are_left_out() -> None:
    cut = [(2, 100.0, 1.0, True), *TRADES[2:], (20, 99.0, 1.0, True), (25, 98.0, 1.0, False)]
    bars, report = built(RawMarket(trades=trades(cut)))
    assert ends(bars) == [20]
    assert report.count("incomplete_bar", "bars") == 2


def test_a_bar_without_a_trade_shows_the_mids_seen_in_it_and_no_volume() -> None:
    seen = [*BOOKS, (21, book(120)), (25, book(118)), (29.5, book(119)), (39.5, book(50))]
    later = [(30, 104.0, 1.0, True), (39.9, 105.0, 1.0, False)]
    raw = RawMarket(books=books(seen), trades=trades([*TRADES, *later]))
    bars, report = built(raw)
    assert ends(bars) == [10, 20, 30, 40]
    quiet = bars.row(2, named=True)
    assert [quiet[name] for name in ("open", "high", "low", "close", "volume")] == [120.0, 120.0, 118.0, 119.0, 0.0]
    assert quiet["taker_buy_volume"] is None
    assert report.count("quiet_bar", "bars") == 1
    assert ends(built(raw, quiet_bar="drop").bars) == [10, 20, 40]


def test_books_without_prices_are_refused_unless_mids_are_asked_for() -> None:
    raw = RawMarket(books=books([(0.5, book(90)), *BOOKS]))
    with pytest.raises(MarketDataError, match="holds books and no prices: name its trades or candles"):
        built(raw)
    bars, report = built(raw, books_only="book_mid")
    assert bars.select("open", "close", "volume").rows() == [(90.0, 100.0, 0.0), (110.0, 110.0, 0.0)]
    assert report.count("books_only", "bars") == 2


@pytest.mark.parametrize(
    ("fault", "levels"),
    [
        ("locked_book", book(half_spread=0.0)),
        ("crossed_book", book(half_spread=-0.25)),
        ("zero_size", book(size=0.0)),
        ("one_sided_book", book() | dict.fromkeys([f"ask{n}_{f}" for n in range(1, 6) for f in ("price", "size")])),
    ],
)
def test_a_faulty_book_is_counted_among_snapshots_and_bars_and_stays_unless_dropped(fault: str, levels: Book) -> None:
    raw = RawMarket(books=books([(5, levels), (9.5, book()), (19.5, levels)]), trades=trades(TRADES))
    bars, report = built(raw)
    assert (report.count(fault, "snapshots"), report.count(fault, "bars")) == (2, 1)
    assert bars.row(1, named=True)["bid1_price"] == levels["bid1_price"]
    assert ends(built(raw, **{fault: "drop"}).bars) == [10]


@pytest.mark.parametrize(
    "broken",
    [
        {"bid1_price": float("nan")},
        {"ask3_price": -1.0},
        {"ask2_size": -1.0},
        {"ask2_size": float("inf")},
        {"bid2_size": None},
        {"bid2_price": None},
        {"bid2_price": None, "bid2_size": None},
        {"ask2_price": 100.1},
    ],
)
def test_an_impossible_snapshot_is_passed_over_as_if_it_never_came(broken: Book) -> None:
    raw = RawMarket(books=books([(9.5, book(100)), (9.8, book(100) | broken), BOOKS[1]]), trades=trades(TRADES))
    bars, report = built(raw)
    assert bars["ask2_price"][0] == 101.5
    assert report.count("malformed_book", "snapshots") == 1
    assert report.snapshots == 3
    with pytest.raises(MarketDataError, match=r"malformed_book 'refuse': 1 snapshots .* 00:09:48"):
        built(raw, malformed_book="refuse")


def test_of_two_books_of_one_time_the_last_counts() -> None:
    seen = [(9.5, book(70)), (9.5, book(100)), (19.5, book(71)), (19.5, book(72)), (19.5, book(73))]
    bars, report = built(RawMarket(books=books(seen), trades=trades(TRADES)))
    assert bars["bid1_price"].to_list() == [99.5, 72.5]
    assert report.count("repeated_record", "snapshots") == 3


def test_impossible_and_repeated_trades_do_not_count() -> None:
    numbered = [(*row, number) for number, row in enumerate(TRADES)]
    faulty = [
        numbered[0],
        numbered[0],
        (1, float("nan"), 1.0, True, 90),
        (2, 100.0, 0.0, True, 91),
        (3, -5.0, 1.0, True, 92),
        (4, None, 1.0, True, 93),
        *numbered[1:],
    ]
    bars, report = built(RawMarket(trades=trades(faulty)))
    assert bars.equals(built(RawMarket(trades=trades(numbered))).bars)
    assert report.count("malformed_trade", "trades") == 4
    assert report.count("repeated_record", "trades") == 1
    assert report.trades == 9
    for policy in ("malformed_trade", "repeated_record"):
        with pytest.raises(MarketDataError, match=f"{policy} 'refuse'"):
            built(RawMarket(trades=trades(faulty)), **{policy: "refuse"})


def test_equal_trades_without_a_number_are_different_trades() -> None:
    bars = built(RawMarket(trades=trades([TRADES[0], *TRADES]))).bars
    assert bars["volume"].to_list() == [4.0, 5.0]


def test_takers_all_on_one_side_or_partly_unknown_give_no_taker_volume() -> None:
    sold = [(time, price, size, False) for time, price, size, _ in TRADES]
    bars, report = built(RawMarket(trades=trades(sold)))
    assert bars["taker_buy_volume"].to_list() == [None, None]
    assert report.count("one_sided_trades", "bars") == 2
    assert built(RawMarket(trades=trades(sold)), one_sided_trades="keep").bars["taker_buy_volume"].to_list() == [0, 0]
    partly = [(0, 100.0, 1.0, None), *TRADES[1:]]
    assert built(RawMarket(trades=trades(partly))).bars["taker_buy_volume"].to_list() == [None, 1.0]


def test_a_price_far_from_the_close_before_is_counted_and_dropped_on_demand() -> None:
    spike = [*TRADES[:3], (15, 400.0, 1.0, True), TRADES[3]]
    bars, report = built(RawMarket(trades=trades(spike)))
    assert report.count("price_outlier", "bars") == 1
    assert bars["high"].to_list() == [101.0, 400.0]
    assert ends(built(RawMarket(trades=trades(spike)), price_outlier="drop").bars) == [10]


def test_a_missing_or_broken_candle_takes_its_bar_and_no_other() -> None:
    rows = [(start, 100.0 + start) for start in range(0, 40, 5)]
    whole = built(RawMarket(candles=candles(rows))).bars
    assert ends(whole) == [10, 20, 30, 40]
    assert whole.row(0)[1:] == (100.0, 105.0, 100.0, 105.0, 2.0, 1.0)
    bars, report = built(RawMarket(candles=candles(rows[:2] + rows[3:])))
    assert bars.equals(whole.filter(pl.Series([True, False, True, True])))
    assert report.count("incomplete_bar", "bars") == 1
    early = pl.concat([candles(rows[:5]), candles(rows[5:6], minutes=3), candles(rows[6:])])
    bars, report = built(RawMarket(candles=early))
    assert bars.equals(whole.filter(pl.Series([True, True, False, True])))
    assert report.count("malformed_candle", "candles") == 1


def test_equal_candles_count_once_and_contradictory_ones_not_at_all() -> None:
    rows = [(start, 100.0) for start in range(0, 30, 5)]
    whole = built(RawMarket(candles=candles(rows))).bars
    bars, report = built(RawMarket(candles=candles([rows[0], *rows])))
    assert bars.equals(whole)
    assert report.count("repeated_record", "candles") == 1
    bars, report = built(RawMarket(candles=candles([*rows, (10, 101.0)])))
    assert ends(bars) == [10, 30]
    assert report.count("repeated_record", "candles") == 2


def test_candles_that_do_not_fit_into_bars_are_refused() -> None:
    with pytest.raises(MarketDataError, match="must divide a bar of 10 minutes, got candles of 15 minutes"):
        built(RawMarket(candles=candles([(0, 1.0), (15, 1.0)], minutes=15)))
    mixed = pl.concat([candles([(0, 1.0), (5, 1.0)]), candles([(10, 1.0)], minutes=10)])
    with pytest.raises(MarketDataError, match=r"must be of one length, got 0:05:00 and then 0:10:00 at .* 00:10"):
        built(RawMarket(candles=mixed))


def test_records_out_of_order_are_an_error_and_not_a_wrong_join() -> None:
    with pytest.raises(MarketDataError, match="books must come oldest first"):
        built(RawMarket(books=books([(9, book()), (1, book())]), trades=trades(TRADES)))
    with pytest.raises(MarketDataError, match="trades must come oldest first"):
        built(RawMarket(trades=trades(TRADES[::-1])))


def test_nothing_to_build_from_says_why() -> None:
    with pytest.raises(MarketDataError, match="the source holds no trades"):
        built(RawMarket(trades=trades([])))
    with pytest.raises(MarketDataError, match="must hold books, trades or candles"):
        built(RawMarket())
    with pytest.raises(MarketDataError, match="no whole bar of 10 minutes: the recording runs from 2024-01-01 00:03"):
        built(RawMarket(trades=trades([(3, 1.0, 1.0, True)])))
    with pytest.raises(MarketDataError, match="no bar is left of 2: missing_book 2"):
        built(RawMarket(books=books([(35, book())]), trades=trades(TRADES)))


MINUTES = st.integers(0, 60 * 60).map(lambda second: second / 60)
PRICES = st.floats(50, 150)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[tuple[float, Book]], list[tuple[Any, ...]]]:
    """An hour of books and trades, some of them impossible, with enough sound ones for bars to come of it."""
    sound = [(minute - 0.2, draw(PRICES)) for minute in range(5, 65, 5)]
    offset = st.sampled_from([0.5, 0.5, 0.5, 0.0, -0.25, float("nan")])
    rows = st.tuples(MINUTES, st.builds(book, PRICES, offset, st.sampled_from([1.0, 0.0, 2.5])))
    seen = draw(st.lists(rows, max_size=20))
    size = st.sampled_from([1.0, 0.25, 0.0, float("nan")])
    made = draw(st.lists(st.tuples(MINUTES, PRICES, size, st.sampled_from([True, False, None])), max_size=25))
    seen += [(time, book(price)) for time, price in sound]
    made += [(0.0, 100.0, 1.0, True), *((time, price, 1.0, False) for time, price in sound[:: draw(st.integers(1, 3))])]
    return sorted(seen, key=lambda row: row[0]), sorted(made, key=lambda row: row[0])


def outcome(raw: RawMarket, market: MarketSettings, **span: datetime) -> pl.DataFrame:
    try:
        return build_bars(raw, market, **span).bars
    except MarketDataError:
        return pl.DataFrame(schema={"timestamp": pl.Datetime("us", "UTC")})


@settings(deadline=None, max_examples=40)
@given(recordings(), recordings(), st.integers(0, 6), st.sampled_from(["keep", "drop"]))
def test_no_bar_depends_on_a_record_after_its_end(
    past: tuple[list[Any], list[Any]], future: tuple[list[Any], list[Any]], cut: int, policy: Any
) -> None:
    market = MarketSettings(ingestion=IngestionSettings(stale_book=policy, price_outlier=policy, stale_seconds=400.0))
    now = cut * 10
    known = [[row for row in rows if row[0] <= now] for rows in past]
    other = [rows + [row for row in more if row[0] > now] for rows, more in zip(known, future, strict=True)]
    alone, changed, original = (
        RawMarket(books=books(seen), trades=trades(made)) for seen, made in (known, other, past)
    )
    expected = outcome(alone, market, known_until=at(now))
    assert outcome(changed, market, known_until=at(now)).equals(expected)
    for raw in (changed, original):
        # The end of what is known decides which bars there are, never what is in them.
        later = outcome(raw, market).join(expected, on="timestamp", how="semi")
        if later.height:
            assert later.equals(expected.join(later, on="timestamp", how="semi"))


@settings(deadline=None, max_examples=40)
@given(recordings(), st.integers(1, 9))
def test_no_bit_depends_on_where_batches_end(recording: tuple[list[Any], list[Any]], rows: int) -> None:
    raw = RawMarket(books=books(recording[0]), trades=trades(recording[1]))
    expected = outcome(raw, MarketSettings())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batches, "BATCH_ROWS", rows)
        assert outcome(raw, MarketSettings()).equals(expected)


@settings(deadline=None, max_examples=20)
@given(recordings(), st.lists(st.integers(-1, 70), max_size=3), st.sampled_from([10, 15]))
def test_periods_built_apart_and_joined_are_the_whole(
    recording: tuple[list[Any], list[Any]], cuts: list[int], bar_minutes: int
) -> None:
    raw = RawMarket(books=books(recording[0]), trades=trades(recording[1]))
    market = MarketSettings(bar_minutes=bar_minutes)
    borders = [at(-1000), *(at(cut) for cut in sorted(set(cuts))), at(1000)]
    periods = [Period(*ends, bar_minutes) for ends in pairwise(borders)]
    joined = RawBars.joined(raw_bars(raw, market, period=period) for period in periods)
    try:
        whole = build_bars(raw, market)
    except MarketDataError as error:
        with pytest.raises(MarketDataError, match=re.escape(str(error))):
            bars_of(joined, market)
        return
    bars, report = bars_of(joined, market)
    assert bars.equals(whole.bars)
    assert report == whole.report
