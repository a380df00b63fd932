"""Raw market data as every vendor's reader hands it over: books, trades and candles as canonical lazy frames.

Building bars from them is `bar_builder`'s work; opening files is `files`'; one vendor's format each is `vendors`'.
Times are UTC and say when something was known: a book or trade at its one stated clock, a candle at its close.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import polars as pl

from archetype_dagster.market.bars import TIMESTAMP, book_columns
from archetype_dagster.market.period import Period
from archetype_dagster.settings import PairSettings

TRADES_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "price": pl.Float64(),
    "size": pl.Float64(),
    "taker_buy": pl.Boolean(),
    "trade_id": pl.Int64(),
}
"""Trades, sorted by (timestamp, trade_id): quote and base units; whether the buyer took, null where unknown;
the venue's number of the trade, null where it has none."""

CANDLES_SCHEMA: Final[dict[str, pl.DataType]] = {
    "open_time": TIMESTAMP,
    "close_time": TIMESTAMP,
    "open": pl.Float64(),
    "high": pl.Float64(),
    "low": pl.Float64(),
    "close": pl.Float64(),
    "volume": pl.Float64(),
    "taker_buy_volume": pl.Float64(),
}
"""Candles over [open_time, close_time), sorted by open_time; volumes in base units, taker_buy_volume null
where unknown."""


def books_schema(levels: int) -> dict[str, pl.DataType]:
    """Schema of books with N levels, sorted by timestamp.

    Args:
        levels: number of levels N on each side.

    Returns:
        `timestamp` and then `bars.book_columns(levels)`, Float64 in quote units (prices) and base units
        (sizes); both null where a level is empty.
    """
    return {"timestamp": TIMESTAMP} | {name: pl.Float64() for name in book_columns(levels)}


@dataclass(frozen=True)
class RawMarket:
    """What one source holds of a pair; None where it holds nothing of a kind.

    Attributes:
        books: lazy frame of `books_schema(N)`, sorted by timestamp, the time a book was known at.
        trades: lazy frame of `TRADES_SCHEMA`, sorted by (timestamp, trade_id).
        candles: lazy frame of `CANDLES_SCHEMA`, sorted by open_time.
    """

    books: pl.LazyFrame | None = None
    trades: pl.LazyFrame | None = None
    candles: pl.LazyFrame | None = None


class Source(Protocol):
    """A vendor's format.

    Attributes:
        name: what `market.source` and the command line call it.
        summary: one line for the command line's help: which files, which clock.
    """

    @property
    def name(self) -> str:
        """The name in settings and on the command line."""

    @property
    def summary(self) -> str:
        """One line on the files and the clock."""

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """The files that `read` reads.

        Args:
            path: as for `read`.
            pair: as for `read`.
            period: as for `read`.

        Raises:
            MarketDataError: nothing there.
        """

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """The market in a file, folder or glob.

        Args:
            path: a file (plain, .gz or .zip), a folder or a glob; files are put in order by their rows'
                times, never by their names.
            pair: the pair whose rows are wanted.
            period: read only the files that records of these bars may lie in, where their names tell, none
                where none can; there may be other records in them.

        Raises:
            MarketDataError: nothing there, damaged or foreign; names file, row, field and rule. Faults in
                a row's values may be raised when the lazy frame is collected.
        """
