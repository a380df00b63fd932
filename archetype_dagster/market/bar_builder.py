"""Bars from raw records: the last book at or before each bar's end and never after, and gaps where data is missing.

Prices come from trades or else candles, volumes with them. What faults there are, what is done about
them and how often is the ingestion settings' and the report's business.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_books import BOOK_TIME, MIDS, books_of_bars
from archetype_dagster.market.bar_prices import PRICE_COLUMNS, prices_from_candles, prices_from_trades
from archetype_dagster.market.bars import num_book_levels
from archetype_dagster.market.ingestion import FaultCount, IngestionReport
from archetype_dagster.market.raw import RawMarket
from archetype_dagster.market.raw_faults import crossed, empty_side, locked, price_outlier, zero_size
from archetype_dagster.market.record_batches import BAR_END, BarPart, refusable
from archetype_dagster.settings import IngestionSettings, MarketSettings

_EDGE_SHARE: Final = 0.1
_BAR_FAULTS: Final = (
    "missing_book",
    "stale_book",
    "locked_book",
    "crossed_book",
    "one_sided_book",
    "zero_size",
    "price_outlier",
)


class BuiltBars(NamedTuple):
    """Bars in the bars schema, without `segment` and, for a source without books, without a book; and the report."""

    bars: pl.DataFrame
    report: IngestionReport


def build_bars(
    raw: RawMarket,
    market: MarketSettings,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    known_until: datetime | None = None,
) -> BuiltBars:
    """Bars of raw records, in memory that does not grow with their number.

    Row t is a function of the records at or before t: of the last well-formed book known at t, and of the
    trades in [t - bar, t) or the candles that close by t. A book older than `stale_seconds` at t is stale.
    A recording of trades tells of a bar if it begins and ends at most `stale_seconds`, or a tenth of the bar
    where that is less, inside it; within the recording, a bar with books and no trade is quiet.

    Args:
        raw: canonical frames of one source, or of a source of books and one of prices.
        market: bar length, levels kept and ingestion policies.
        start: build bars that end at or after this time (UTC).
        end: build bars that end before this time (UTC).
        known_until: read records up to this time (UTC) only, and take the recording of trades to reach it.

    Raises:
        MarketDataError: no bar can be built, or a fault that a policy refuses; says which.
    """
    policies = market.ingestion
    raw = _inside(raw, timedelta(minutes=market.bar_minutes), start, end, known_until)
    books = prices = None
    if raw.books is not None:
        books = books_of_bars(raw.books, levels=market.book_levels, bar_minutes=market.bar_minutes, policies=policies)
    if raw.trades is not None:
        prices = prices_from_trades(raw.trades, bar_minutes=market.bar_minutes, policies=policies)
    elif raw.candles is not None:
        prices = prices_from_candles(raw.candles, bar_minutes=market.bar_minutes, policies=policies)
    rows, faults = _priced(raw, books, prices, market, known_until)
    if books is not None:
        rows = _with_books(rows, books)
    bounds = [pl.col(BAR_END) >= start] if start is not None else []
    bounds += [pl.col(BAR_END) < end] if end is not None else []
    if rows.is_empty():
        told = next(part for part in (prices, books) if part is not None)
        raise MarketDataError(
            f"no whole bar of {market.bar_minutes} minutes: the recording runs from {told.first} to {told.last}"
        )
    # Flags look at the bar before, so the range is cut after them.
    flagged = rows.with_columns(_flags(rows, policies)).filter(*bounds)
    bars, more = _apply(flagged, policies)
    names = [BAR_END, *PRICE_COLUMNS]
    if books is not None:
        names += [*(name for name in books.rows.columns if name[:3] in ("bid", "ask")), "book_source"]
    return BuiltBars(
        bars.select(names),
        IngestionReport(
            snapshots=books.records if books is not None else 0,
            trades=prices.records if prices is not None and raw.trades is not None else 0,
            candles=prices.records if prices is not None and raw.trades is None else 0,
            bars=bars.height,
            dropped_bars=flagged.height - bars.height,
            faults=(*(books.faults if books is not None else ()), *faults, *more),
        ),
    )


def _inside(
    raw: RawMarket, bar: timedelta, start: datetime | None, end: datetime | None, known_until: datetime | None
) -> RawMarket:
    """The records that bars of the range need, and that were known by then."""

    def cut(records: pl.LazyFrame | None, opened: str, known: str) -> pl.LazyFrame | None:
        wanted = []
        if start is not None:
            # A bar more, to tell a recording that goes on from one that begins, and for the close before.
            wanted.append(pl.col(opened) >= start - 2 * bar)
        if end is not None:
            wanted.append(pl.col(opened) < end)
        if known_until is not None:
            wanted.append(pl.col(known) <= known_until)
        return records if records is None else records.filter(*wanted)

    return RawMarket(
        books=cut(raw.books, "timestamp", "timestamp"),
        trades=cut(raw.trades, "timestamp", "timestamp"),
        candles=cut(raw.candles, "open_time", "close_time"),
    )


def _priced(
    raw: RawMarket,
    books: BarPart | None,
    prices: BarPart | None,
    market: MarketSettings,
    known_until: datetime | None,
) -> tuple[pl.DataFrame, list[FaultCount]]:
    """Bars with prices, those without a trade included where books were seen, and the faults found."""
    policies, bar = market.ingestion, timedelta(minutes=market.bar_minutes)
    if prices is not None and raw.trades is None:
        return prices.rows, list(prices.faults)
    if prices is None and books is not None and policies.books_only == "refuse":
        raise MarketDataError(
            "the source holds books and no prices: name its trades or candles as market.prices_source and "
            "market.prices_path, or set market.ingestion.books_only to book_mid"
        )
    told = books if prices is None else prices
    if told is None:
        raise MarketDataError("a source must hold books, trades or candles")
    tolerance = min(timedelta(seconds=policies.stale_seconds), _EDGE_SHARE * bar)
    until = told.last + tolerance if known_until is None else known_until
    whole = (pl.col(BAR_END) - bar >= told.first - tolerance) & (pl.col(BAR_END) <= until)
    traded = told.rows.clear().select(_mid_prices()) if prices is None else prices.rows
    cut = traded.filter(~whole)
    incomplete = refusable("incomplete_bar", "bars", cut.height, cut[BAR_END], policies.incomplete_bar)
    rows = traded.filter(whole)
    faults = [*(prices.faults if prices is not None else ()), incomplete]
    if books is None:
        return rows, faults
    quiet = books.rows.filter(whole, pl.col(MIDS["close"]).is_not_null())
    quiet = quiet.select(_mid_prices()).join(traded, on=BAR_END, how="anti")
    policy = policies.quiet_bar if prices is not None else policies.books_only
    faults.append(FaultCount("quiet_bar" if prices is not None else "books_only", "bars", quiet.height, policy))
    return (rows if policy == "drop" else pl.concat([rows, quiet]).sort(BAR_END)), faults


def _mid_prices() -> list[pl.Expr]:
    prices = [pl.col(mid).alias(name) for name, mid in MIDS.items()]
    return [pl.col(BAR_END), *prices, pl.lit(0.0).alias("volume"), pl.lit(None, pl.Float64).alias("taker_buy_volume")]


def _with_books(rows: pl.DataFrame, books: BarPart) -> pl.DataFrame:
    """Each bar with the last book known at its end, however old."""
    last = books.rows.drop(MIDS.values())
    joined = rows.sort(BAR_END).join_asof(last.sort(BAR_END), on=BAR_END, strategy="backward")
    return joined.with_columns(pl.lit("observed").alias("book_source"))


def _flags(rows: pl.DataFrame, policies: IngestionSettings) -> list[pl.Expr]:
    """One Boolean column for each fault of a bar."""
    flags = {"price_outlier": price_outlier(policies.outlier_fraction)}
    if BOOK_TIME in rows.columns:
        levels = num_book_levels(rows)
        there = pl.col(BOOK_TIME).is_not_null()
        age = pl.col(BAR_END) - pl.col(BOOK_TIME)
        flags |= {
            "missing_book": ~there,
            "stale_book": (age > pl.duration(microseconds=round(policies.stale_seconds * 1e6))).fill_null(value=False),
            "locked_book": locked(),
            "crossed_book": crossed(),
            "one_sided_book": there & empty_side(),
            "zero_size": zero_size(levels),
        }
    return [flag.alias(name) for name, flag in flags.items()]


def _apply(rows: pl.DataFrame, policies: IngestionSettings) -> tuple[pl.DataFrame, list[FaultCount]]:
    """The bars that every policy leaves, and the count of each fault."""
    faults, good = [], pl.Series([True]).new_from_index(0, rows.height)
    for name in _BAR_FAULTS:
        if name not in rows.columns:
            continue
        found, policy = rows[name], getattr(policies, name)
        faults.append(refusable(name, "bars", int(found.sum()), rows.filter(found)[BAR_END], policy))
        if policy == "drop":
            good &= ~found
    if not good.any():
        told = ", ".join(f"{row.fault} {row.count}" for row in faults if row.count)
        raise MarketDataError(f"no bar is left of {rows.height}" + (f": {told}" if told else ""))
    return rows.filter(good), faults
