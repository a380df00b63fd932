"""Raw websocket captures of Binance: a line holds the receiver's clock in nanoseconds, a space and the message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_rebuild import rebuild_books
from archetype_dagster.market.delimited import RowBlock, clock_times, naming
from archetype_dagster.market.depth_sequence import linked_changes
from archetype_dagster.market.files import DataFile, find_files, paths_of
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import TRADES_SCHEMA, RawMarket, books_schema
from archetype_dagster.market.row_stream import following, in_order, scan_frames
from archetype_dagster.market.validation import raise_first
from archetype_dagster.market.vendors.binance_depth import check_changes
from archetype_dagster.settings import PairSettings

_LEVELS: Final = pl.List(pl.List(pl.String()))
_DEPTH: Final = pl.Struct(
    {"s": pl.String(), "U": pl.Int64(), "u": pl.Int64(), "pu": pl.Int64(), "b": _LEVELS, "a": _LEVELS}
)
_TRADE: Final = pl.Struct({"s": pl.String(), "t": pl.Int64(), "p": pl.String(), "q": pl.String(), "m": pl.Boolean()})
_ENVELOPE: Final = r'^\{"stream":"[^"]*","data":(.*)\}$'
_LINE: Final = r"^(\d{13,19}) (\{.*\})\r?$"


@dataclass(frozen=True)
class BinanceCapture:
    """Depth updates and trades of one recorder; the messages may be wrapped as combined streams are.

    Attributes:
        levels: levels kept on each side.
        interval_seconds: a book is made after the last change in each interval of this length; it must
            divide the bar for the last book before a bar's end to be exact.
        warm_up_seconds: a capture has no snapshot, so the levels are learned from the updates; the book
            counts as known after so many seconds without a break in the numbers. On five recorded
            minutes of BTCUSDT the best 20 levels are those of the true book from the 77th second on.
    """

    name: str = "binance-capture"
    summary: str = "raw Binance websocket capture: depth updates rebuilt once a minute, and trades; receiver's clock"
    levels: int = 25
    interval_seconds: int = 60
    warm_up_seconds: int = 120

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return paths_of(find_files(path))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """Books and trades of the pair; see `raw.Source.read`. Other streams of the capture are not used."""
        files, symbol = find_files(path), f"{pair.base}{pair.quote}"

        def books() -> Iterator[pl.DataFrame]:
            changes = linked_changes(
                in_order(_blocks(files, lambda rows: _events(rows, symbol)), by=("timestamp",)),
                warm_up_seconds=self.warm_up_seconds,
            )
            with naming(str(path)):
                yield from rebuild_books(changes, levels=self.levels, interval_seconds=self.interval_seconds)

        def trades() -> Iterator[pl.DataFrame]:
            return in_order(_blocks(files, lambda rows: _trades(rows, symbol)), by=("timestamp", "trade_id"))

        return RawMarket(books=scan_frames(books_schema(self.levels), books), trades=scan_frames(TRADES_SCHEMA, trades))


def _blocks(files: tuple[DataFile, ...], convert: Callable[[pl.DataFrame], pl.DataFrame]) -> Iterator[RowBlock]:
    for file in following(files, _start):
        first_row = 0
        for text in file.blocks():
            lines = _lines(text)
            yield RowBlock(lines, file.label, first_row).convert(lambda rows: convert(_messages(rows)))
            first_row += lines.height


def _lines(text: bytes) -> pl.DataFrame:
    return pl.DataFrame({"line": text.decode("utf-8", "replace").rstrip("\n").split("\n")})


def _start(file: DataFile) -> int | None:
    head = file.head()
    if not head:
        raise MarketDataError("file is empty", file=file.label)
    messages = RowBlock(_lines(head.split(b"\n", 1)[0]), file.label, 0).convert(_messages).rows
    return int(messages["timestamp"].dt.epoch("us")[0])


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """timestamp, message (JSON text without its envelope) and row of each line."""
    parts = rows.select(
        "line",
        clock=pl.col("line").str.extract(_LINE, 1).cast(pl.Int64, strict=False),
        message=pl.col("line").str.extract(_LINE, 2),
    ).with_row_index("row")
    raise_first(parts, pl.col("clock").is_null(), "line", "a line must be nanoseconds, a space and a JSON object")
    inner = pl.col("message").str.extract(_ENVELOPE, 1)
    return parts.select(
        "row", clock_times(parts["clock"]).alias("timestamp"), pl.coalesce(inner, "message").alias("message")
    )


def _decoded(messages: pl.DataFrame, kind: str, fields: pl.Struct, symbol: str) -> pl.DataFrame:
    chosen = messages.filter(pl.col("message").str.contains(f'"e":"{kind}"', literal=True))
    try:
        decoded = chosen.with_columns(pl.col("message").str.json_decode(fields)).unnest("message")
    except pl.exceptions.PolarsError as error:
        for row, message in chosen.select("row", "message").iter_rows():
            try:
                json.loads(message)
            except json.JSONDecodeError as fault:
                raise MarketDataError(f"a message must be JSON ({fault})", row=row) from error
        raise MarketDataError(f"not the {kind} messages of a Binance stream ({error})") from error
    return decoded.filter(pl.col("s") == symbol)


def _events(messages: pl.DataFrame, symbol: str) -> pl.DataFrame:
    depth = _decoded(messages, "depthUpdate", _DEPTH, symbol)
    sides = [
        depth.select(
            "row", "timestamp", "U", "u", "pu", pl.lit(name == "b").alias("is_bid"), pl.col(name).alias("level")
        )
        for name in ("b", "a")
    ]
    levels = pl.concat(sides).sort("row", maintain_order=True).explode("level")
    price, size = (pl.col("level").list.get(index, null_on_oob=True).cast(pl.Float64, strict=False) for index in (0, 1))
    events = levels.select(
        "timestamp",
        pl.col("U").alias("first_id"),
        pl.col("u").alias("last_id"),
        pl.col("pu").alias("previous_id"),
        pl.lit(value=False).alias("is_snapshot"),
        "is_bid",
        price.alias("price"),
        size.alias("size"),
        level_is_there=pl.col("level").is_not_null(),
    )
    check_changes(events)
    raise_first(events, pl.col("level_is_there") & pl.col("price").is_null(), "price", "a level must have a price")
    return events.drop("level_is_there")


def _trades(messages: pl.DataFrame, symbol: str) -> pl.DataFrame:
    trades = _decoded(messages, "trade", _TRADE, symbol)
    return trades.select(
        "timestamp",
        pl.col("p").cast(pl.Float64, strict=False).alias("price"),
        pl.col("q").cast(pl.Float64, strict=False).alias("size"),
        (~pl.col("m")).alias("taker_buy"),
        pl.col("t").alias("trade_id"),
    )
