"""One bar as it comes, by column name: checked and read as a row of a bars table is, in NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, SupportsFloat

import numpy as np

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import book_columns, num_book_levels, widen_touch
from archetype_dagster.market.book import mark_of_books
from archetype_dagster.market.feature_formulas import Candles
from archetype_dagster.market.order_books import OrderBooks, book_side
from archetype_dagster.types import FloatArray

_CANDLE_PRICES: Final = frozenset(("open", "high", "low", "close"))


class SingleBar(NamedTuple):
    """One bar's numbers as arrays of one row.

    Attributes:
        timestamp: bar end, UTC.
        candles: prices in quote units and volume in base units, float64 (1,) each.
        books: one book, float64 (1, N) a side, no spread zero or negative.
        mid: mark price, float64 (1,), quote units.
        segment: the bar's segment, None where it does not say.
    """

    timestamp: datetime
    candles: Candles
    books: OrderBooks
    mid: FloatArray
    segment: int | None


def read_bar(bar: Mapping[str, Any], *, levels: int | None = None) -> SingleBar:
    """Read one bar under the rules of `order_books.number_column`.

    Args:
        bar: a row of a bars table by column name, e.g. of `iter_rows(named=True)`: `timestamp` (bar end, aware
            datetime), open, high, low, close, volume and at least five book levels, where None stands for null;
            `segment` where there is one. Other columns are ignored.
        levels: book levels read; all by default.

    Raises:
        MarketDataError: a missing column, fewer than five levels or an unusable value.
    """
    timestamp = bar_end(bar)
    candles = Candles(*_numbers(bar, Candles._fields)[:, None])
    books = _book(bar, num_book_levels(bar) if levels is None else levels)
    return SingleBar(timestamp, candles, books, mark_of_books(books, candles.close), bar.get("segment"))


def bar_end(bar: Mapping[str, Any]) -> datetime:
    """The bar's end in UTC; `MarketDataError` where it is missing or names no time zone."""
    try:
        timestamp = bar["timestamp"]
    except KeyError:
        raise MarketDataError("missing column", field="timestamp") from None
    if not isinstance(timestamp, datetime) or timestamp.tzinfo is None:
        raise MarketDataError(f"must be a datetime with its time zone, got {timestamp!r}", field="timestamp")
    return timestamp.astimezone(UTC)


def _book(bar: Mapping[str, Any], levels: int) -> OrderBooks:
    values = _numbers(bar, _columns(levels), nullable=True).reshape(levels, 4)
    if values[0, 0] >= values[0, 2]:
        values = _widened(bar)[:levels]
    prices, sizes = values[:, [0, 2], None], values[:, [1, 3], None]
    return OrderBooks(*(book_side(prices[:, side], sizes[:, side]) for side in (0, 1)))


def _widened(bar: Mapping[str, Any]) -> FloatArray:
    """The levels of a locked or crossed book by the policy `widen`, which looks at every level for its tick."""
    levels = num_book_levels(bar)
    values = np.array([bar[name] for name in _columns(levels)], dtype=np.float64).reshape(levels, 4)
    bids, asks = widen_touch(values[None, :, 0], values[None, :, 2])
    values[:, 0], values[:, 2] = bids[0], asks[0]
    return values


@cache
def _columns(levels: int) -> tuple[str, ...]:
    return tuple(book_columns(levels))


def _numbers(bar: Mapping[str, Any], names: Sequence[str], *, nullable: bool = False) -> FloatArray:
    """Values of a bar, float64 (n,), NaN for None, under the rules of `number_column`."""
    try:
        # NumPy reads None as NaN.
        values = np.array([bar[name] for name in names], dtype=np.float64)
    except KeyError as missing:
        raise MarketDataError("missing column", field=str(missing.args[0])) from None
    except (TypeError, ValueError):
        name = next(name for name in names if not isinstance(bar[name], SupportsFloat | None))
        raise MarketDataError(f"must be a number, got {bar[name]!r}", field=name) from None
    usable = np.isfinite(values) & (values >= 0)
    # Almost every bar ends here; the rest looks for the value at fault.
    for index in np.flatnonzero(~usable | (values == 0)).tolist():
        name = names[index]
        positive = name in _CANDLE_PRICES or name.endswith("_price")
        if (nullable and bar[name] is None) or (usable[index] and not positive):
            continue
        rule = "positive and finite" if positive else "finite and not negative"
        raise MarketDataError(f"must be {rule}, got {bar[name]}", field=name)
    return values
