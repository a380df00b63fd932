"""What a strategy sees: bars up to now, its account and the order book, all of it read-only and none of it later.

A context is made anew for every call and refers to nothing that holds a later row: bars are copied into `History`
as they end, and the engine that knows the rest can't be reached from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import polars as pl

from archetype_dagster.backtest.engine.book_diff import BookSnapshot
from archetype_dagster.backtest.engine.book_records import Side
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.order_book import OrderBook
from archetype_dagster.backtest.engine.orders import OpenOrder
from archetype_dagster.backtest.engine.venue import Venue
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.types import FloatArray, IndexArray


class Bar(NamedTuple):
    """One leg's bar; prices in quote units, volume in base units, NaN where the source has none.

    Attributes:
        instrument: of which leg.
        timestamp: bar end, UTC.
        open: first price.
        high: highest price.
        low: lowest price.
        close: last price.
        volume: traded in the bar.
        mark: price at which positions are valued at the bar's end.
    """

    instrument: Instrument
    timestamp: datetime
    open: float
    high: float
    low: float
    close: float
    volume: float
    mark: float


class History:
    """The bars of one leg that have ended, and room for those to come.

    Args:
        columns: names of the bars' numbers, C of them.
        length: most bars there can be.
    """

    def __init__(self, columns: tuple[str, ...], length: int) -> None:
        self.columns = columns
        self.count = 0
        # Zeros, not whatever the memory held before: an earlier run's later bars could be in it.
        self._rows = np.zeros((length, len(columns)))
        self._times = np.zeros(length, dtype=np.int64)

    def reveal(self, times: IndexArray, rows: FloatArray) -> None:
        """Append bars that have ended."""
        end = self.count + len(times)
        self._times[self.count : end], self._rows[self.count : end] = times, rows
        self.count = end

    def values(self, name: str, bars: int | None, upto: int) -> FloatArray:
        """One column of the last `bars` of the first `upto` bars, float64 (n,), oldest first; a read-only copy.

        Raises:
            MarketDataError: no such column.
            ValueError: `bars` is not positive.
        """
        if name not in self.columns:
            raise MarketDataError(f"unknown column; choose from {', '.join(self.columns[:12])}, ...", field=name)
        found = self._rows[_window(bars, upto), self.columns.index(name)].copy()
        found.flags.writeable = False
        return found

    def row(self, upto: int) -> dict[str, float | None]:
        """Every number of the last of the first `upto` bars, at least one, by name; None for null."""
        return {
            name: value if value == value else None
            for name, value in zip(self.columns, self._rows[upto - 1].tolist(), strict=True)
        }

    def frame(self, bars: int | None, upto: int) -> pl.DataFrame:
        """The last `bars` of the first `upto` bars, oldest first: `timestamp` and the bars' numbers; a copy."""
        window = _window(bars, upto)
        times = pl.Series("timestamp", self._times[window].copy()).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        numbers = pl.DataFrame(self._rows[window].copy(), schema=dict.fromkeys(self.columns, pl.Float64))
        return numbers.with_columns(pl.all().fill_nan(None)).insert_column(0, times.cast(TIMESTAMP))


class BookView:
    """One leg's live order book, to look at: resting orders of the market and of the account."""

    __slots__ = ("_venue",)

    def __init__(self, venue: Venue) -> None:
        self._venue = venue

    @property
    def best_bid(self) -> float | None:
        """Highest resting buy, quote units; None where there is none."""
        return self._live.best_bid

    @property
    def best_ask(self) -> float | None:
        """Lowest resting sell, quote units; None where there is none."""
        return self._live.best_ask

    def depth(self, side: Side) -> tuple[FloatArray, FloatArray]:
        """Prices and sizes of the resting buys or sells by level, float64 (N,) each, best first."""
        return self._live.depth(side)

    def snapshot(self) -> BookSnapshot:
        """Every resting order; account orders have owner 1."""
        return self._live.snapshot()

    @property
    def _live(self) -> OrderBook:
        # With orders of its own a venue is always up to date, so that looking at it never fills one.
        self._venue.refresh()
        return self._venue.book


@dataclass(frozen=True, slots=True)
class BarContext:
    """The account and the market at one moment.

    Attributes:
        time: now, UTC; None before the first bar.
        bar_number: bars that ended before this one, i.e. 0 at the first; -1 before it.
        cash: quote units; see `portfolio.Portfolio` for what it is with swaps.
        net_value: V, quote units.
        instruments: the legs, in the order they were added.
        states: each leg's position (base units), average entry and mark (quote units).
        newest: each leg's newest bar; none before the first.
        open_orders: resting orders of the account.
        stopped: why trading has ended, None while it goes on.
        books: live books by leg.
        histories: bars that have ended by leg; `history` and `values` read them.
        known_bars: how many of them had ended at this moment.
        execution_delay_bars: bars between a decision and its execution.
    """

    time: datetime | None
    bar_number: int
    cash: float
    net_value: float
    instruments: tuple[Instrument, ...]
    states: tuple[tuple[float, float, float], ...]
    newest: tuple[Bar, ...]
    open_orders: tuple[OpenOrder, ...]
    stopped: str | None
    books: Mapping[Instrument, BookView]
    histories: Mapping[Instrument, History]
    known_bars: int
    execution_delay_bars: int

    @property
    def position(self) -> float:
        """Position of the first leg, base units."""
        return self.states[0][0]

    @property
    def positions(self) -> dict[Instrument, float]:
        """Positions by leg, base units."""
        return {name: state[0] for name, state in zip(self.instruments, self.states, strict=True)}

    @property
    def entries(self) -> dict[Instrument, float]:
        """Average entry prices by leg, quote units; 0 when flat."""
        return {name: state[1] for name, state in zip(self.instruments, self.states, strict=True)}

    @property
    def marks(self) -> dict[Instrument, float]:
        """Mark prices by leg, quote units; NaN before the first bar."""
        return {name: state[2] for name, state in zip(self.instruments, self.states, strict=True)}

    @property
    def bars(self) -> dict[Instrument, Bar]:
        """Newest bars by leg; none before the first."""
        return {bar.instrument: bar for bar in self.newest}

    @property
    def book(self) -> BookView:
        """Live book of the first leg."""
        return self.books[self.instruments[0]]

    def history(self, bars: int | None = None, *, instrument: Instrument | None = None) -> pl.DataFrame:
        """The last `bars` bars that have ended, all by default, oldest first: `timestamp` and every number.

        Raises:
            ValueError: `bars` is not positive.
        """
        return self.histories[instrument or self.instruments[0]].frame(bars, self.known_bars)

    def row(self, *, instrument: Instrument | None = None) -> dict[str, datetime | float | None]:
        """The newest bar as a row of its table: `timestamp` and every number, None for null; quicker than `history`.

        Raises:
            ValueError: no bar has ended.
        """
        if self.time is None:
            raise ValueError("no bar has ended yet")
        numbers = self.histories[instrument or self.instruments[0]].row(self.known_bars)
        return {"timestamp": self.time, **numbers}

    def values(self, column: str, bars: int | None = None, *, instrument: Instrument | None = None) -> FloatArray:
        """One column of `history` as float64 (n,), NaN for null; much quicker than the whole frame.

        Raises:
            MarketDataError: no such column.
            ValueError: `bars` is not positive.
        """
        return self.histories[instrument or self.instruments[0]].values(column, bars, self.known_bars)


def _window(bars: int | None, upto: int) -> slice:
    if bars is not None and bars <= 0:
        raise ValueError(f"bars must be positive, got bars={bars}")
    return slice(0 if bars is None else max(upto - bars, 0), upto)
