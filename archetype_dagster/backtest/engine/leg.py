"""One leg's market as arrays: bars and their books, finer snapshots, trades and funding, checked once for many runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from archetype_dagster.backtest.engine.funding import FundingSchedule, funding_schedule
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.order_book import fine_lot_size
from archetype_dagster.backtest.replay import bar_ends
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import mark_of_books
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.order_books import BookSide, OrderBooks, number_column, order_books
from archetype_dagster.types import BoolArray, FloatArray, IndexArray

MARK_COLUMN: Final = "mark_price"
PRICE_COLUMNS: Final = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True)
class LegSpec:
    """What a user gives for one leg; see `BacktestEngine.add`."""

    instrument: Instrument
    bars: pl.DataFrame
    snapshots: pl.DataFrame | None
    trades: pl.DataFrame | None
    funding: pl.DataFrame | None
    impact_curve: ImpactCurve
    max_position: float | None


class ShownSide(NamedTuple):
    """One side of a snapshot, best level first, float64 (N,) each; nothing where it is empty."""

    prices: FloatArray
    sizes: FloatArray
    empty: bool


class ShownBook(NamedTuple):
    """One snapshot, copied out of its table, so that whoever holds it holds no later one."""

    mid: float
    bid: ShownSide
    ask: ShownSide


@dataclass(frozen=True)
class BookRows:
    """Books of one leg, one a row.

    Attributes:
        times: int64 (n,), microseconds since 1970.
        mids: float64 (n,), the price that slippage is measured from, as in the cost tables.
        marks: float64 (n,), the price that positions are valued at: the mids, or the venue's own mark.
        books: their levels.
        ties: bool (n,), neighbouring levels share a price, as widened touches do.
    """

    times: IndexArray
    mids: FloatArray
    marks: FloatArray
    books: OrderBooks
    ties: BoolArray

    def shown(self, row: int) -> ShownBook:
        """One row's snapshot, sizes of one price summed."""
        merge = bool(self.ties[row])
        bid, ask = self.books
        return ShownBook(float(self.mids[row]), _shown_side(bid, row, merge=merge), _shown_side(ask, row, merge=merge))


@dataclass(frozen=True)
class Prints:
    """Trades of one leg whose taker is known, in order: the volume that consumes queues."""

    times: IndexArray
    prices: FloatArray
    sizes: FloatArray
    taker_buys: BoolArray


@dataclass(frozen=True)
class Leg:
    """One leg, ready to run.

    Attributes:
        instrument: what is traded.
        bars: the books at the T bar ends.
        finer: books between them, none by default.
        prints: trades between them, none by default.
        funding: settlements.
        columns: names of the bars' numbers, C of them.
        rows: float64 (T, C), the bars' numbers, NaN for null.
        prices: float64 (T, 5), PRICE_COLUMNS among them, NaN where the bars lack one.
        impact_curve: of the depth policy `extrapolate`.
        max_position: own limit of this leg, base units, or None.
        lot_size: step of the order book, base units; far below any size's own precision.
    """

    instrument: Instrument
    bars: BookRows
    finer: BookRows
    prints: Prints
    funding: FundingSchedule
    columns: tuple[str, ...]
    rows: FloatArray
    prices: FloatArray
    impact_curve: ImpactCurve
    max_position: float | None
    lot_size: float


def prepare_leg(spec: LegSpec, bars: pl.DataFrame) -> Leg:
    """The leg of a spec on those of its bars that are walked.

    Raises:
        MarketDataError: bars, snapshots, trades or funding that break a rule, with row and field.
    """
    close = number_column(bars, "close", positive=True)
    at_ends = _book_rows(bars, close)
    finer = bars[:0] if spec.snapshots is None else _between(spec.snapshots, at_ends.times)
    if MARK_COLUMN in bars.columns and finer.height and MARK_COLUMN not in finer.columns:
        raise MarketDataError("snapshots need the column where the bars have it", field=MARK_COLUMN)
    numbers = bars.select(name for name, kind in bars.schema.items() if kind.is_numeric() and name != "segment")
    seen = np.searchsorted(at_ends.times, _micros(finer), side="left") - 1
    fine_rows = _book_rows(finer, close[np.maximum(seen, 0)])
    deepest = max((_largest(rows.books) for rows in (at_ends, fine_rows) if len(rows.mids)), default=0.0)
    return Leg(
        instrument=spec.instrument,
        bars=at_ends,
        finer=fine_rows,
        prints=_prints(spec.trades),
        funding=FundingSchedule.none() if spec.funding is None else funding_schedule(spec.funding),
        columns=tuple(numbers.columns),
        rows=np.ascontiguousarray(numbers.cast(pl.Float64).to_numpy()),
        prices=_prices(bars),
        impact_curve=spec.impact_curve,
        max_position=spec.max_position,
        lot_size=fine_lot_size(deepest or 1.0),
    )


def _book_rows(frame: pl.DataFrame, close: FloatArray) -> BookRows:
    books = order_books(frame)
    mids = mark_of_books(books, close)
    marks = number_column(frame, MARK_COLUMN, positive=True) if MARK_COLUMN in frame.columns else mids
    ties = np.zeros(len(mids), dtype=np.bool_)
    for side in books:
        ties |= ((np.diff(side.prices, axis=1) == 0) & (side.sizes[:, 1:] > 0)).any(axis=1)
    rows = tuple(
        BookSide(np.ascontiguousarray(side.prices), np.ascontiguousarray(side.sizes), side.empty) for side in books
    )
    return BookRows(_micros(frame), mids, marks, OrderBooks(*rows), ties)


def _micros(frame: pl.DataFrame) -> IndexArray:
    return bar_ends(frame).astype(np.int64)


def _between(snapshots: pl.DataFrame, ends: IndexArray) -> pl.DataFrame:
    """The snapshots inside the bars; at a bar's end its own book counts."""
    times = _micros(snapshots)
    if (np.diff(times) <= 0).any():
        row = int(np.argmax(np.diff(times) <= 0)) + 1
        raise MarketDataError("snapshot times must increase", row=row, field="timestamp")
    inside = (times > ends[0]) & (times < ends[-1]) & ~np.isin(times, ends)
    return snapshots.filter(pl.Series(inside))


def _prints(trades: pl.DataFrame | None) -> Prints:
    if trades is None:
        return Prints(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0, np.bool_))
    known = trades.filter(pl.col("taker_buy").is_not_null())
    times = _micros(known)
    if (np.diff(times) < 0).any():
        row = int(np.argmax(np.diff(times) < 0)) + 1
        raise MarketDataError("trade times must not run backwards", row=row, field="timestamp")
    return Prints(
        times,
        number_column(known, "price", positive=True),
        number_column(known, "size", positive=True),
        known["taker_buy"].to_numpy(),
    )


def _largest(books: OrderBooks) -> float:
    return max(float(side.sizes.sum(axis=1).max()) for side in books)


def _shown_side(side: BookSide, row: int, *, merge: bool) -> ShownSide:
    prices, sizes, empty = side.prices[row].copy(), side.sizes[row].copy(), bool(side.empty[row])
    if merge and not empty:
        first = np.flatnonzero(np.diff(prices, prepend=np.nan) != 0)
        prices, sizes = prices[first], np.add.reduceat(sizes, first)
    return ShownSide(prices, sizes, empty)


def _prices(bars: pl.DataFrame) -> FloatArray:
    known = [pl.col(name) if name in bars.columns else pl.lit(None).alias(name) for name in PRICE_COLUMNS]
    return np.ascontiguousarray(bars.select(known).cast(pl.Float64).to_numpy())
