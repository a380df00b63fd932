"""Binance's order books: depth by distance from the mid (`bookDepth`), and snapshots with numbered updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_rebuild import rebuild_books
from archetype_dagster.market.delimited import Layout, clock_times, naming, read_blocks
from archetype_dagster.market.depth_sequence import linked_changes
from archetype_dagster.market.files import DataFile, find_files, paths_of
from archetype_dagster.market.period import Period, files_of_period, within_named_days
from archetype_dagster.market.raw import RawMarket, books_schema
from archetype_dagster.market.row_stream import read_in_order, scan_frames
from archetype_dagster.market.validation import raise_first
from archetype_dagster.market.vendors.binance_archive import archive_files
from archetype_dagster.settings import PairSettings

_BAND_ORDER: Final = ("timestamp", "percentage", "depth", "notional")
_BANDS: Final = Layout(
    "Binance bookDepth",
    {"timestamp": pl.String(), "percentage": pl.Float64(), "depth": pl.Float64(), "notional": pl.Float64()},
    "timestamp",
    [_BAND_ORDER],
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
    """`bookDepth`: depth and notional within so many percent of the mid, every half minute."""

    name: str = "binance-book-depth"
    summary: str = (
        "Binance archive bookDepth, um: one level per percent band at its mean price, no touch; exchange's time"
    )

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(archive_files(path, pair, "bookDepth"), period, includes_end=True))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Books of the pair; see `raw.Source.read`.

        Level k holds what lies between the (k-1)-th and the k-th distance, at that band's mean price
        (notional / depth). The touch is not in the file: the spread is that of the bands, far wider
        than the market's, and trading on such a book costs too much, never too little.
        """
        there = archive_files(path, pair, "bookDepth")
        schema = books_schema(max(_bands(file) for file in there))
        files = files_of_period(there, period, includes_end=True)

        def frames() -> Iterator[pl.DataFrame]:
            rows = read_in_order(files, _BANDS, _depths, by=("timestamp",))
            for frame in rows if period is None else within_named_days(rows, files, clock="timestamp"):
                yield _band_books(frame, schema)

        return RawMarket(books=scan_frames(schema, frames))


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


def _bands(file: DataFile) -> int:
    """Number of distances on each side in a file's first book."""
    first = next(read_blocks(file, _BANDS), None)
    if first is None:
        return 1
    rows = first.rows.filter(pl.col("timestamp") == pl.col("timestamp").first())
    return rows["percentage"].abs().n_unique()


def _depths(rows: pl.DataFrame) -> pl.DataFrame:
    for name in ("percentage", "depth", "notional"):
        value = pl.col(name)
        bad = ~(value.is_finite() & ((value != 0) if name == "percentage" else (value >= 0))).fill_null(value=False)
        raise_first(
            rows, bad, name, f"{name} must be finite and " + ("not zero" if name == "percentage" else "not negative")
        )
    return rows.with_columns(clock_times(rows["timestamp"]))


def _band_books(depths: pl.DataFrame, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Whole books of one row each from cumulative depths, all rows of a time being there."""
    side = pl.when(pl.col("percentage") < 0).then(pl.lit("bid")).otherwise(pl.lit("ask"))
    rows = depths.with_columns(side=side, distance=pl.col("percentage").abs()).sort("timestamp", "side", "distance")
    group = ["timestamp", "side"]
    rows = rows.with_columns(
        size=pl.col("depth") - pl.col("depth").shift(1, fill_value=0.0).over(group),
        money=pl.col("notional") - pl.col("notional").shift(1, fill_value=0.0).over(group),
    )
    fault = (pl.col("size") < 0) | (pl.col("money") < 0) | pl.struct(*group, "distance").is_duplicated()
    bad = rows.filter(fault)
    if bad.height:
        row = bad.row(0, named=True)
        rule = f"depth must grow with the distance, one row each; not so at {row['timestamp']}"
        raise MarketDataError(rule, field="depth")
    there = rows.filter(pl.col("size") > 0).with_columns(level=pl.int_range(1, pl.len() + 1).over(group))
    levels = (len(schema) - 1) // 4
    if (there["level"] > levels).any():
        raise MarketDataError(f"the first book has {levels} distances, a later one has more", field="percentage")
    cells = {
        f"{name}{level}_{field}": pl.col(field).filter((pl.col("side") == name) & (pl.col("level") == level)).first()
        for level in range(1, levels + 1)
        for name in ("bid", "ask")
        for field in ("price", "size")
    }
    priced = there.with_columns(price=pl.col("money") / pl.col("size"))
    return priced.group_by("timestamp", maintain_order=True).agg(**cells).select(schema.keys())
