"""Binance's order books from snapshots with numbered updates, and why depth by distance (`bookDepth`) is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_rebuild import rebuild_books
from archetype_dagster.market.delimited import Layout, clock_times, naming
from archetype_dagster.market.depth_sequence import linked_changes
from archetype_dagster.market.files import find_files, paths_of
from archetype_dagster.market.period import Period, files_of_period
from archetype_dagster.market.raw import RawMarket, books_schema
from archetype_dagster.market.row_stream import read_in_order, scan_frames
from archetype_dagster.market.validation import raise_first
from archetype_dagster.market.vendors.binance_archive import archive_files
from archetype_dagster.settings import PairSettings

_BANDS: Final = Layout(
    "Binance bookDepth",
    {"timestamp": pl.String(), "percentage": pl.Float64(), "depth": pl.Float64(), "notional": pl.Float64()},
    "timestamp",
    [("timestamp", "percentage", "depth", "notional")],
)
_UPDATE_ORDER: Final = (
    "symbol",
    "timestamp",
    "first_update_id",
    "last_update_id",
    "side",
    "update_type",
    "price",
    "qty",
    "pu",
)
_UPDATES: Final = Layout(
    "Binance depth snapshots and updates",
    {
        "symbol": pl.String(),
        "timestamp": pl.Int64(),
        "first_update_id": pl.Int64(),
        "last_update_id": pl.Int64(),
        "side": pl.String(),
        "update_type": pl.String(),
        "price": pl.Float64(),
        "qty": pl.Float64(),
        "pu": pl.Int64(),
    },
    "timestamp",
    [_UPDATE_ORDER],
)


@dataclass(frozen=True)
class BinanceBookDepth:
    """`bookDepth`: what lies within so many percent of the mid, every half minute. It is refused with its reason.

    The nearest of its distances is far wider than any spread, so a book made of it would price every trade wrong.
    """

    name: str = "binance-book-depth"
    summary: str = "Binance archive bookDepth, um: depth within percents of the mid, which is no book; refused"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(archive_files(path, pair, "bookDepth"), period, includes_end=True))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Always a `MarketDataError`: what the file is and what to use, or that it is none of bookDepth."""
        for file in archive_files(path, pair, "bookDepth"):
            _BANDS.names(file)
        raise MarketDataError(
            "bookDepth tells how much lies within so many percent of the mid, and no order's price: it is no book to "
            "trade on; use tardis-book-snapshot, tardis-incremental-book or binance-depth for books, or "
            "binance-klines, binance-agg-trades or binance-trades, whose bars get a modelled book",
            file=path,
        )


@dataclass(frozen=True)
class BinanceDepth:
    """Depth snapshots and updates with `first_update_id`, `last_update_id` and `pu`, rebuilt.

    Attributes:
        levels: levels kept on each side.
        interval_seconds: a book is made after the last change in each interval of this length; it must
            divide the bar for the last book before a bar's end to be exact.
    """

    name: str = "binance-depth"
    summary: str = "Binance depth snapshots and updates CSV, the book rebuilt once a minute; exchange's time"
    levels: int = 25
    interval_seconds: int = 60

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(find_files(path))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Books of the pair; see `raw.Source.read`. None before a snapshot and after a break in the numbers."""
        files = find_files(path)
        for file in files:
            _UPDATES.names(file)
        symbol = f"{pair.base}{pair.quote}"

        def frames() -> Iterator[pl.DataFrame]:
            events = read_in_order(files, _UPDATES, lambda rows: _events(rows, symbol), by=("timestamp", "last_id"))
            changes = linked_changes(events, warm_up_seconds=None)
            with naming(str(path)):
                yield from rebuild_books(changes, levels=self.levels, interval_seconds=self.interval_seconds)

        return RawMarket(books=scan_frames(books_schema(self.levels), frames))


def check_changes(rows: pl.DataFrame) -> None:
    """Prices must be positive and sizes not negative, both finite or both null; else `MarketDataError`."""
    price, size = pl.col("price"), pl.col("size")
    raise_first(rows, ~(price.is_finite() & (price > 0)), "price", "price must be finite and positive")
    raise_first(rows, ~(size.is_finite() & (size >= 0)), "size", "size must be finite and not negative")
    raise_first(rows, price.is_null() != size.is_null(), "price", "price and size must both be there")


def _events(rows: pl.DataFrame, symbol: str) -> pl.DataFrame:
    raise_first(rows, pl.col("symbol") != symbol, "symbol", f"rows must be of {symbol}")
    raise_first(rows, ~pl.col("side").is_in(["a", "b"]).fill_null(value=False), "side", "side must be a or b")
    kind = pl.col("update_type")
    raise_first(rows, ~kind.is_in(["snap", "set"]).fill_null(value=False), "update_type", "must be snap or set")
    events = rows.select(
        clock_times(rows["timestamp"]),
        pl.col("first_update_id").alias("first_id"),
        pl.col("last_update_id").alias("last_id"),
        pl.col("pu").alias("previous_id"),
        (kind == "snap").alias("is_snapshot"),
        (pl.col("side") == "b").alias("is_bid"),
        "price",
        pl.col("qty").alias("size"),
    )
    for name in ("first_id", "last_id", "price"):
        raise_first(events, pl.col(name).is_null(), name, f"{name} must not be null")
    check_changes(events)
    return events
