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
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import RawMarket
from archetype_dagster.market.raw_bars import RawBars
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


def build_bars(raw: RawMarket, market: MarketSettings, *, known_until: datetime | None = None) -> BuiltBars:
    """Bars of raw records, in memory that does not grow with their number.

    Row t is a function of the records at or before t: of the last well-formed book known at t, and of the
    trades in [t - bar, t) or the candles that close by t. A book older than `stale_seconds` at t is stale.
    A recording of trades tells of a bar if it begins and ends at most `stale_seconds`, or a tenth of the bar
    where that is less, inside it; within the recording, a bar with books and no trade is quiet.

    Args:
        raw: canonical frames of one source, or of a source of books and one of prices.
        market: bar length, levels kept and ingestion policies.
        known_until: read records up to this time (UTC) only, and take the recording of trades to reach it.

    Raises:
        MarketDataError: no bar can be built, or a fault that a policy refuses; says which.
    """
    return bars_of(raw_bars(_known(raw, known_until), market), market, known_until=known_until)


def raw_bars(raw: RawMarket, market: MarketSettings, *, period: Period | None = None) -> RawBars:
    """What the records of each bar say by themselves, in memory that does not grow with their number.

    Args:
        raw: canonical frames of one source, or of a source of books and one of prices.
        market: bar length, levels kept and ingestion policies.
        period: the bars wanted; None for all.

    Raises:
        MarketDataError: a fault of records that a policy refuses; says which.
    """
    minutes, policies = market.bar_minutes, market.ingestion

    def inside(records: pl.LazyFrame, clock: str, *, includes_end: bool) -> pl.LazyFrame:
        return records if period is None else records.filter(period.holds(clock, includes_end=includes_end))

    books = trades = candles = None
    if raw.books is not None:
        wanted = inside(raw.books, "timestamp", includes_end=True)
        books = books_of_bars(wanted, levels=market.book_levels, bar_minutes=minutes, policies=policies)
    if raw.trades is not None:
        wanted = inside(raw.trades, "timestamp", includes_end=False)
        trades = prices_from_trades(wanted, bar_minutes=minutes, policies=policies)
    elif raw.candles is not None:
        wanted = inside(raw.candles, "open_time", includes_end=False)
        candles = prices_from_candles(wanted, bar_minutes=minutes, policies=policies)
    return RawBars(books, trades, candles)


def bars_of(raw: RawBars, market: MarketSettings, *, known_until: datetime | None = None) -> BuiltBars:
    """Bars, by all rules and policies that look at more than one bar or at more than one kind of record.

    Args:
        raw: what the records of each bar say by themselves.
        market: as for `raw_bars`.
        known_until: see `build_bars`.

    Raises:
        MarketDataError: see `build_bars`.
    """
    policies, books = market.ingestion, raw.books
    raw.check_told()
    rows, faults = _priced(raw, market, known_until)
    if books is not None:
        rows = _with_books(rows, books)
    if rows.is_empty():
        told = next(part for part in (raw.trades, raw.candles, books) if part is not None)
        raise MarketDataError(
            f"no whole bar of {market.bar_minutes} minutes: the recording runs from {told.first} to {told.last}"
        )
    flagged = rows.with_columns(_flags(rows, policies))
    bars, more = _apply(flagged, policies)
    names = [BAR_END, *PRICE_COLUMNS]
    if books is not None:
        names += [*(name for name in books.rows.columns if name[:3] in ("bid", "ask")), "book_source"]
    return BuiltBars(
        bars.select(names),
        IngestionReport(
            snapshots=books.records if books is not None else 0,
            trades=raw.trades.records if raw.trades is not None else 0,
            candles=raw.candles.records if raw.candles is not None else 0,
            bars=bars.height,
            dropped_bars=flagged.height - bars.height,
            faults=(*(books.faults if books is not None else ()), *faults, *more),
        ),
    )


def _known(raw: RawMarket, known_until: datetime | None) -> RawMarket:
    """The records that were known by then."""

    def cut(records: pl.LazyFrame | None, known: str) -> pl.LazyFrame | None:
        return records if records is None or known_until is None else records.filter(pl.col(known) <= known_until)

    return RawMarket(cut(raw.books, "timestamp"), cut(raw.trades, "timestamp"), cut(raw.candles, "close_time"))


def _priced(
    raw: RawBars, market: MarketSettings, known_until: datetime | None
) -> tuple[pl.DataFrame, list[FaultCount]]:
    """Bars with prices, those without a trade included where books were seen, and the faults found."""
    policies, bar = market.ingestion, timedelta(minutes=market.bar_minutes)
    if raw.candles is not None:
        return raw.candles.rows, list(raw.candles.faults)
    books, prices = raw.books, raw.trades
    if prices is None and books is not None and policies.books_only == "refuse":
        raise MarketDataError(
            "the source holds books and no prices: name its trades or candles as market.prices_source and "
            "market.prices_path, or set market.ingestion.books_only to book_mid"
        )
    told = books if prices is None else prices
    if told is None or told.first is None or told.last is None:
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
