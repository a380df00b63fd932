"""Reading bars' numbers and books as checked arrays.

A null level holds nothing and a null best quote empties its side: nothing is filled from other rows.
Locked and crossed books go through `bars.apply_book_policies`, whether the caller did so or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from polars.exceptions import ColumnNotFoundError

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import apply_book_policies, num_book_levels
from archetype_dagster.types import BoolArray, FloatArray


@dataclass(frozen=True)
class BookSide:
    """One side of T books, best level first.

    Attributes:
        prices: float64 (T, N) in quote units; an absent level repeats the price above it, NaN where
            the side is empty.
        sizes: float64 (T, N) in base units; 0 for absent levels.
        empty: bool (T,), no best quote.
    """

    prices: FloatArray
    sizes: FloatArray
    empty: BoolArray


class OrderBooks(NamedTuple):
    """Both sides of T books."""

    bid: BookSide
    ask: BookSide


def order_books(bars: pl.DataFrame, *, levels: int | None = None) -> OrderBooks:
    """The book of each bar, checked, absent levels resolved, no spread zero or negative.

    Args:
        bars: frame with `bid1_price`, `bid1_size`, ... columns.
        levels: number of levels read; all by default.

    Raises:
        MarketDataError: fewer than five levels; NaN, infinite or non-positive price; NaN, infinite
            or negative size.
    """
    count = num_book_levels(bars) if levels is None else levels
    books = OrderBooks(_book_side(bars, "bid", count), _book_side(bars, "ask", count))
    if (books.bid.prices[:, 0] >= books.ask.prices[:, 0]).any():
        bars = apply_book_policies(bars)
        books = OrderBooks(_book_side(bars, "bid", count), _book_side(bars, "ask", count))
    return books


def number_column(bars: pl.DataFrame, name: str, *, positive: bool = False, nullable: bool = False) -> FloatArray:
    """A column as float64 (T,), NaN for null.

    Raises:
        MarketDataError: missing column; NaN, infinite, negative (or zero, where `positive`) value;
            null where not `nullable`.
    """
    try:
        series = bars.get_column(name).cast(pl.Float64)
    except ColumnNotFoundError:
        raise MarketDataError(
            f"missing column; the first ones are {', '.join(bars.columns[:12])}", field=name
        ) from None
    values = series.to_numpy()
    bad = ~(np.isfinite(values) & ((values > 0) if positive else (values >= 0)))
    if nullable:
        bad &= series.is_not_null().to_numpy()
    if bad.any():
        row = int(np.argmax(bad))
        rule = "positive and finite" if positive else "finite and not negative"
        raise MarketDataError(f"must be {rule}, got {series[row]}", row=row, field=name)
    return np.asarray(values, dtype=np.float64)


def book_side(prices: FloatArray, sizes: FloatArray) -> BookSide:
    """One side from its levels, float64 (N, T) each, best first, NaN where nothing is; values are not checked."""
    absent = np.isnan(prices)
    sizes = np.where(absent | np.isnan(sizes), 0.0, sizes)
    empty = absent[0]
    if absent.any():
        prices = prices.copy()
        for level in range(1, len(prices)):
            prices[level] = np.where(absent[level], prices[level - 1], prices[level])
        prices[:, empty], sizes[:, empty] = np.nan, 0.0
    return BookSide(prices.T, sizes.T, empty)


def _book_side(bars: pl.DataFrame, side: Literal["bid", "ask"], levels: int) -> BookSide:
    prices, sizes = np.empty((levels, bars.height)), np.empty((levels, bars.height))
    for level in range(levels):
        prices[level] = number_column(bars, f"{side}{level + 1}_price", positive=True, nullable=True)
        sizes[level] = number_column(bars, f"{side}{level + 1}_size", nullable=True)
    return book_side(prices, sizes)
