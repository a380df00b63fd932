"""Tardis CSV files. Every row is known at its `local_timestamp`, the arrival at the recorder; `timestamp`, the
exchange's clock, is not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_rebuild import CHANGES_SCHEMA, NEVER, rebuild_books
from archetype_dagster.market.delimited import Layout, clock_times, naming
from archetype_dagster.market.files import DataFile, find_files, paths_of
from archetype_dagster.market.period import Period, files_of_period, within_named_days
from archetype_dagster.market.raw import TRADES_SCHEMA, RawMarket, books_schema
from archetype_dagster.market.row_stream import read_in_order, scan_frames
from archetype_dagster.market.validation import raise_first
from archetype_dagster.settings import PairSettings

CONTRACT_VENUES: Final = (
    "binance-delivery",
    "bitmex",
    "cryptofacilities",
    "deribit",
    "gate-io-futures",
    "huobi-dm",
    "huobi-dm-linear-swap",
    "huobi-dm-swap",
    "okex-futures",
    "okex-swap",
)
"""Venues whose amounts count contracts or quote units, not base units."""

_HEAD: Final = ("exchange", "symbol", "timestamp", "local_timestamp")
_CHANGE_COLUMNS: Final = (*_HEAD, "is_snapshot", "side", "price", "amount")
_TRADE_COLUMNS: Final = (*_HEAD, "id", "side", "price", "amount")
_LEVEL: Final = re.compile(r"(ask|bid)s\[(\d+)\]\.(price|amount)")


@dataclass
class _Selection:
    """Rows of one pair and one venue; remembers what else there was, to say so where nothing fits."""

    symbol: str
    symbols: set[str] = field(default_factory=set)
    venues: set[str] = field(default_factory=set)

    def checked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the column `wanted`; `MarketDataError` for a second venue or amounts in contracts."""
        plain = pl.col("symbol").str.replace_all(r"[-_/]", "").str.to_uppercase()
        marked = rows.with_columns(wanted=(plain == self.symbol).fill_null(value=False))
        self.symbols.update(marked.filter(~pl.col("wanted"))["symbol"].drop_nulls().unique())
        self.venues.update(marked.filter("wanted")["exchange"].drop_nulls().unique())
        if len(self.venues) > 1:
            raise MarketDataError(f"rows must be of one venue, got {', '.join(sorted(self.venues))}", field="exchange")
        in_contracts = pl.col("wanted") & pl.col("exchange").is_in(CONTRACT_VENUES)
        raise_first(marked, in_contracts, "exchange", "amounts must be in base units, this venue's count contracts")
        return marked


@dataclass(frozen=True)
class TardisBookSnapshots:
    """`book_snapshot_5`, `book_snapshot_25` and any other number of levels."""

    name: str = "tardis-book-snapshot"
    summary: str = "Tardis book_snapshot_5 / _25 CSV; known at local_timestamp"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(find_files(path), period, includes_end=True))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Books of the pair; see `raw.Source.read`. A level whose price is missing is null."""
        there = find_files(path)
        levels = _levels(there[0])
        files = files_of_period(there, period, includes_end=True)
        fields = [f"{side}s[{n}].{kind}" for n in range(levels) for side in ("ask", "bid") for kind in _KINDS]
        layout = Layout(
            f"a Tardis book snapshot of {levels} levels",
            _HEAD_TYPES | {name: pl.Float64() for name in fields},
            "local_timestamp",
            [(*_HEAD, *fields)],
        )
        renamed = {
            f"{side}s[{n}].{kind}": f"{side}{n + 1}_{_KINDS[kind]}"
            for n in range(levels)
            for side in ("ask", "bid")
            for kind in _KINDS
        }
        schema = books_schema(levels)

        def convert(rows: pl.DataFrame) -> pl.DataFrame:
            return _at_arrival(rows.rename(renamed)).select(schema.keys())

        read = _reader(path, files, layout, pair, period, convert, by=("timestamp",))
        return RawMarket(books=scan_frames(schema, read))


@dataclass(frozen=True)
class TardisIncrementalBook:
    """`incremental_book_L2`, rebuilt into one book per interval.

    Attributes:
        levels: levels kept on each side.
        interval_seconds: a book is made after the last change in each interval of this length; it must
            divide the bar for the last book before a bar's end to be exact.
    """

    name: str = "tardis-incremental-book"
    summary: str = "Tardis incremental_book_L2 CSV, the book rebuilt once a minute; known at local_timestamp"
    levels: int = 25
    interval_seconds: int = 60

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(find_files(path), period, includes_end=True))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Books of the pair; see `raw.Source.read`. None before the first snapshot, each later one starts anew."""
        types = {"is_snapshot": pl.Boolean(), "side": pl.String(), "price": pl.Float64(), "amount": pl.Float64()}
        layout = Layout("Tardis incremental_book_L2", _HEAD_TYPES | types, "local_timestamp", [_CHANGE_COLUMNS])
        there = find_files(path)
        files = files_of_period(there, period, includes_end=True)
        changes = _reader(path, files, layout, pair, period, _level_changes, by=("timestamp",))

        def books() -> Iterator[pl.DataFrame]:
            with naming(str(path)):
                marked = _with_resets(changes(), starts_anew=len(files) < len(there))
                yield from rebuild_books(marked, levels=self.levels, interval_seconds=self.interval_seconds)

        return RawMarket(books=scan_frames(books_schema(self.levels), books))


@dataclass(frozen=True)
class TardisTrades:
    """`trades`; the side is the taker's."""

    name: str = "tardis-trades"
    summary: str = "Tardis trades CSV; known at local_timestamp"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(files_of_period(find_files(path), period, includes_end=False))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Trades of the pair; see `raw.Source.read`. Numbers that are not whole, as UUIDs, are null."""
        types = {"id": pl.String(), "side": pl.String(), "price": pl.Float64(), "amount": pl.Float64()}
        layout = Layout("Tardis trades", _HEAD_TYPES | types, "local_timestamp", [_TRADE_COLUMNS])
        files = files_of_period(find_files(path), period, includes_end=False)
        by = ("timestamp", "trade_id")
        return RawMarket(trades=scan_frames(TRADES_SCHEMA, _reader(path, files, layout, pair, period, _trades, by=by)))


_KINDS: Final = {"price": "price", "amount": "size"}
_HEAD_TYPES: Final[dict[str, pl.DataType]] = {
    "exchange": pl.String(),
    "symbol": pl.String(),
    "local_timestamp": pl.Int64(),
}


def _levels(file: DataFile) -> int:
    cells = file.head().split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    numbers = [int(match[2]) for cell in cells if (match := _LEVEL.fullmatch(cell))]
    levels = max(numbers) + 1 if numbers else (len(cells) - len(_HEAD)) // 4
    if levels < 1:
        raise MarketDataError("a Tardis book snapshot must have columns asks[0].price, ...", file=file.label)
    return levels


def _at_arrival(rows: pl.DataFrame) -> pl.DataFrame:
    timed = rows.with_columns(clock_times(rows["local_timestamp"]).alias("timestamp"))
    return timed.filter("wanted") if "wanted" in timed.columns else timed


def _trades(rows: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("side").is_in(["buy", "sell", "unknown"]).fill_null(value=True)
    raise_first(rows, ~known, "side", "side must be buy, sell or unknown")
    side = pl.when(pl.col("side") != "unknown").then(pl.col("side") == "buy")
    trades = rows.with_columns(side.alias("taker_buy"), pl.col("id").cast(pl.Int64, strict=False).alias("trade_id"))
    return _at_arrival(trades.rename({"amount": "size"})).select(TRADES_SCHEMA.keys())


def _level_changes(rows: pl.DataFrame) -> pl.DataFrame:
    price, amount = pl.col("price"), pl.col("amount")
    raise_first(rows, ~pl.col("side").is_in(["bid", "ask"]).fill_null(value=False), "side", "side must be bid or ask")
    raise_first(rows, pl.col("is_snapshot").is_null(), "is_snapshot", "is_snapshot must be true or false")
    bad_price = ~(price.is_finite() & (price > 0)).fill_null(value=False)
    raise_first(rows, bad_price, "price", "price must be finite and positive")
    bad_amount = ~(amount.is_finite() & (amount >= 0)).fill_null(value=False)
    raise_first(rows, bad_amount, "amount", "amount must be finite and not negative")
    changes = rows.with_columns((pl.col("side") == "bid").alias("is_bid")).rename({"amount": "size"})
    return _at_arrival(changes).select("timestamp", "is_bid", "price", "size", "is_snapshot")


def _with_resets(changes: Iterator[pl.DataFrame], *, starts_anew: bool) -> Iterator[pl.DataFrame]:
    """Changes with the resets of their books; one that starts anew, amid a recording, must do so with a snapshot."""
    in_snapshot = False
    for frame in changes:
        if starts_anew and not frame["is_snapshot"][0]:
            raise MarketDataError(
                "a month's first file must begin with a snapshot of the book, got a change at "
                f"{frame['timestamp'][0]}; set market.by_month to false to read all files at once",
                field="is_snapshot",
            )
        starts_anew = False
        starts = pl.col("is_snapshot") & ~pl.col("is_snapshot").shift(1, fill_value=in_snapshot)
        known_from = pl.when(starts).then(pl.col("timestamp").dt.epoch("us")).otherwise(NEVER)
        yield frame.with_columns(reset=starts, known_from=known_from).select(CHANGES_SCHEMA.keys())
        in_snapshot = bool(frame["is_snapshot"][-1])


def _reader(
    path: Path,
    files: Sequence[DataFile],
    layout: Layout,
    pair: PairSettings,
    period: Period | None,
    convert: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    by: Sequence[str],
) -> Callable[[], Iterator[pl.DataFrame]]:
    for file in files:
        layout.names(file)

    def frames() -> Iterator[pl.DataFrame]:
        selection = _Selection(f"{pair.base}{pair.quote}")
        found = False
        rows = read_in_order(files, layout, lambda rows: convert(selection.checked(rows)), by=by)
        for frame in rows if period is None else within_named_days(rows, files, clock=by[0]):
            found = True
            yield frame
        # A pair may have been listed after the period.
        if not found and selection.symbols and period is None:
            there = ", ".join(sorted(selection.symbols)[:12])
            raise MarketDataError(f"must hold rows of {selection.symbol}, got {there}", file=path, field="symbol")

    return frames
