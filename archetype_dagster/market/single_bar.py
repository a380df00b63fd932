"""One bar as it comes, by column name: checked and read as a row of a bars table is, in NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, SupportsFloat

import numpy as np

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import book_columns, num_book_levels, widen_touch
from archetype_dagster.market.book import mark_of_books
from archetype_dagster.market.feature_formulas import Candles
from archetype_dagster.market.order_books import BookSide, OrderBooks, book_side
from archetype_dagster.types import FloatArray

_CANDLE_PRICES: Final = frozenset(("open", "high", "low", "close"))
_NOT_EMPTY: Final = np.zeros(1, dtype=np.bool_)
_NOT_EMPTY.flags.writeable = False


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
    candles: Candles[FloatArray]
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
    count = _levels_of(tuple(bar)) if levels is None else levels
    values = _numbers(bar, _columns(count))
    candles = Candles(*values[: len(Candles._fields), None])
    books = _books(bar, values[len(Candles._fields) :].reshape(count, 2, 2))
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


def _books(bar: Mapping[str, Any], levels: FloatArray) -> OrderBooks:
    """The book of `levels` (N, 2, 2) by side, bids first, and by price and size."""
    if levels[0, 0, 0] >= levels[0, 1, 0]:
        levels[..., 0] = _widened(bar)[: len(levels)]
    sides = [(levels[:, side, :1], levels[:, side, 1:]) for side in (0, 1)]
    if np.isnan(levels).any():
        bid, ask = (book_side(prices, sizes) for prices, sizes in sides)
    else:
        # What `book_side` makes of a side without an absent level, in a fraction of the time.
        bid, ask = (BookSide(prices.T, sizes.T, _NOT_EMPTY) for prices, sizes in sides)
    return OrderBooks(bid, ask)


def _widened(bar: Mapping[str, Any]) -> FloatArray:
    """Prices (N, 2) of a locked or crossed book by the policy `widen`, which looks at every level for its tick."""
    names = book_columns(num_book_levels(bar))
    prices = np.array([bar[name] for name in names[::2]], dtype=np.float64).reshape(1, -1, 2)
    bids, asks = widen_touch(prices[..., 0], prices[..., 1])
    return np.column_stack([bids[0], asks[0]])


@lru_cache(maxsize=16)
def _levels_of(columns: tuple[str, ...]) -> int:
    return num_book_levels(dict.fromkeys(columns))


@lru_cache(maxsize=16)
def _columns(levels: int) -> tuple[str, ...]:
    return (*Candles._fields, *book_columns(levels))


def _numbers(bar: Mapping[str, Any], names: Sequence[str]) -> FloatArray:
    """Values of a bar, float64 (n,), NaN for None in its book, under the rules of `number_column`."""
    try:
        # NumPy reads None as NaN.
        values = np.array([bar[name] for name in names], dtype=np.float64)
    except KeyError as missing:
        raise MarketDataError("missing column", field=str(missing.args[0])) from None
    except (TypeError, ValueError):
        name = next(name for name in names if not isinstance(bar[name], SupportsFloat | None))
        raise MarketDataError(f"must be a number, got {bar[name]!r}", field=name) from None
    # Almost every bar ends here; the rest looks for the value at fault.
    if ((values > 0) & (values < np.inf)).all():
        return values
    for name, value in zip(names, values.tolist(), strict=True):
        positive = name in _CANDLE_PRICES or name.endswith("_price")
        absent = bar[name] is None and name not in Candles._fields
        if absent or 0 < value < np.inf or (value == 0 and not positive):
            continue
        rule = "positive and finite" if positive else "finite and not negative"
        raise MarketDataError(f"must be {rule}, got {bar[name]}", field=name)
    return values
