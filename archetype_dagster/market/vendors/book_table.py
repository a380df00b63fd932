"""Recorded book tables: wide, as lists or as distances from the mid; with trades and candles where they are beside.

The kind of a table is told by its columns:

- wide books: a clock and `bid1_price`, `bid1_size`, `ask1_price`, ... to any level;
- list books: a clock and `bids_px`, `bids_qty`, `asks_px`, `asks_qty`, best level first;
- relative books: a clock, `midpoint`, and `bids_distance_0`, `bids_notional_0`, `asks_distance_0`, ... where a
  price is midpoint (1 + distance) and a size is notional / price;
- trades: a clock, `price` and `quantity`, `qty`, `size` or `amount`;
- candles: `open_time` or `bar_open_ms`, open, high, low, close, volume, in a table of their own or in a
  book table of bars, whose clock then says when the book was seen.

A level of price and size zero is no level. Where a table has several clocks, the first of `timestamp`,
`ts_ms`, `ts_us`, `ts`, `local_timestamp`, `system_time` and `time` is the one that records were known at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, takewhile
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import book_columns
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import TRADES_SCHEMA, RawMarket, books_schema
from archetype_dagster.market.table_files import find_table_files, open_tables
from archetype_dagster.market.tables import BOOK_CLOCKS, Table, scan_tables, utc_times
from archetype_dagster.market.vendors.candles import has_candles, scan_candles
from archetype_dagster.settings import PairSettings

MOST_LEVELS: Final = 100
_LISTS: Final = ("bids_px", "bids_qty", "asks_px", "asks_qty")
_SIZES: Final = ("quantity", "qty", "size", "amount")
_CANDLE_CLOCKS: Final = ("open_time", "bar_open_ms")


@dataclass(frozen=True)
class BookTable:
    """The source `book-table`."""

    name: str = "book-table"
    summary: str = (
        "recorded books in columns, lists or distances from midpoint, trades and candles beside them; Parquet, "
        "Feather, JSON or CSV; known at timestamp or ts_ms"
    )

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return tuple(find_table_files(path, pair))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """See `Source.read`; the folder's files are those with the pair in their name."""
        tables = open_tables(path, pair)
        books = [table for table in tables if book_levels(table)]
        trades = [table for table in tables if table not in books and _is_trades(table)]
        candles = [table for table in tables if has_candles(table, _CANDLE_CLOCKS)]
        for table in tables:
            if table not in books and table not in trades and table not in candles:
                raise MarketDataError(
                    "a table must hold books (bid1_price, bids_px or bids_distance_0), trades (price, quantity) or "
                    f"candles (open_time, open, ...); there are columns {table.columns()}",
                    file=table.label,
                )
        return RawMarket(
            books=scan_books(books) if books else None,
            trades=_scan_trades(trades) if trades else None,
            candles=scan_candles(candles, _CANDLE_CLOCKS) if candles else None,
        )


def book_levels(table: Table) -> int:
    """Levels of a book table; 0 where it is none."""
    columns = set(table.head.columns)
    if columns.issuperset(_LISTS):
        longest = table.head.select(pl.max_horizontal(pl.col(_LISTS).list.len().max())).item()
        return min(int(longest or 0), MOST_LEVELS)
    if "midpoint" in columns:
        return _count(columns, "{side}s_distance_{below}", "{side}s_notional_{below}")
    return _count(columns, "{side}{level}_price", "{side}{level}_size")


def _count(columns: set[str], *patterns: str) -> int:
    def there(level: int) -> bool:
        return columns.issuperset(
            pattern.format(side=side, level=level, below=level - 1) for side in ("bid", "ask") for pattern in patterns
        )

    return sum(1 for _ in takewhile(there, count(1)))


def scan_books(
    tables: Sequence[Table], clocks: Sequence[str] = BOOK_CLOCKS, delays: Mapping[str, timedelta] | None = None
) -> pl.LazyFrame:
    """Canonical books of tables with at least one level.

    Args:
        tables: one or more.
        clocks: names of the column with a snapshot's time, the preferred one first.
        delays: by a table's label, how long after that time its snapshots were known; not at all by default.

    Raises:
        MarketDataError: a table without a clock.
    """
    levels = max(book_levels(table) for table in tables)
    delay = dict.fromkeys((table.label for table in tables), timedelta(0)) if delays is None else delays

    def columns(table: Table) -> list[str]:
        named = (expression.meta.root_names() for expression in _book(table, book_levels(table)).values())
        return list(dict.fromkeys([table.clock(clocks), *(name for names in named for name in names)]))

    def convert(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
        told = _book(table, book_levels(table))
        book = rows.select(told.get(name, pl.lit(None)).cast(pl.Float64).alias(name) for name in book_columns(levels))
        book = book.with_columns(
            pl.when(~_is_no_level(f"{side}{level}")).then(f"{side}{level}_{field}").alias(f"{side}{level}_{field}")
            for side in ("bid", "ask")
            for level in range(1, levels + 1)
            for field in ("price", "size")
        )
        known = (utc_times(rows[table.clock(clocks)]) + delay[table.label]).alias("timestamp")
        return pl.DataFrame([known, *book.get_columns()])

    return scan_tables(tables, columns, convert, schema=books_schema(levels), by=["timestamp"])


def _book(table: Table, levels: int) -> dict[str, pl.Expr]:
    """The canonical columns of a book table, from its own."""
    columns = set(table.head.columns)
    expressions: dict[str, pl.Expr] = {}
    for side in ("bid", "ask"):
        for level in range(1, levels + 1):
            if columns.issuperset(_LISTS):
                price, size = (
                    pl.col(f"{side}s_{field}").list.get(level - 1, null_on_oob=True) for field in ("px", "qty")
                )
            elif "midpoint" in columns:
                price = pl.col("midpoint") * (1 + pl.col(f"{side}s_distance_{level - 1}"))
                size = pl.col(f"{side}s_notional_{level - 1}") / price
            else:
                price, size = pl.col(f"{side}{level}_price"), pl.col(f"{side}{level}_size")
            expressions |= {f"{side}{level}_price": price, f"{side}{level}_size": size}
    return expressions


def _is_no_level(prefix: str) -> pl.Expr:
    return ((pl.col(f"{prefix}_price") == 0) & (pl.col(f"{prefix}_size").fill_null(0.0) == 0)).fill_null(value=False)


def _is_trades(table: Table) -> bool:
    return "price" in table.head.columns and table.first_of(_SIZES) is not None


def _scan_trades(tables: Sequence[Table]) -> pl.LazyFrame:
    def columns(table: Table) -> list[str]:
        optional = [name for name in ("is_buyer_taker", "side", "trade_id") if name in table.head.columns]
        return [table.clock(BOOK_CLOCKS), "price", str(table.first_of(_SIZES)), *optional]

    def convert(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
        taker = pl.lit(None, pl.Boolean)
        if "is_buyer_taker" in rows.columns:
            taker = pl.col("is_buyer_taker").cast(pl.Boolean)
        elif "side" in rows.columns:
            side = pl.col("side").cast(pl.String).str.to_lowercase()
            taker = pl.when(side.is_in(["buy", "sell"])).then(side == "buy")
        number = pl.col("trade_id") if "trade_id" in rows.columns else pl.lit(None)
        trades = rows.select(
            pl.col("price").cast(pl.Float64),
            pl.col(str(table.first_of(_SIZES))).cast(pl.Float64).alias("size"),
            taker.alias("taker_buy"),
            number.cast(pl.Int64, strict=False).alias("trade_id"),
        )
        return pl.DataFrame([utc_times(rows[table.clock(BOOK_CLOCKS)]).alias("timestamp"), *trades.get_columns()])

    return scan_tables(tables, columns, convert, schema=TRADES_SCHEMA, by=["timestamp", "trade_id"])
