"""The bars table: its columns, its segments and the one policy for locked and crossed books.

Checking a table against the rules is `validation`'s work; where bars come from is `sources`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import FloatArray

TIMESTAMP: Final = pl.Datetime("us", "UTC")
MIN_BOOK_LEVELS: Final = 5
_FIELDS: Final = ("price", "size")
_UNKNOWN_TICK: Final = 1e-4

BARS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "open": pl.Float64(),
    "high": pl.Float64(),
    "low": pl.Float64(),
    "close": pl.Float64(),
    "volume": pl.Float64(),
    "taker_buy_volume": pl.Float64(),
    "book_source": pl.String(),
    "segment": pl.Int32(),
}
"""Columns of fixed name: bar end (UTC), prices in quote units, volumes in base units, book origin, segment."""


def book_columns(levels: int) -> list[str]:
    """Names of an N-level book, level by level: bid1_price, bid1_size, ask1_price, ask1_size, bid2_price ..."""
    return [f"{side}{level}_{field}" for level in range(1, levels + 1) for side in ("bid", "ask") for field in _FIELDS]


def num_book_levels(bars: pl.DataFrame | Mapping[str, object]) -> int:
    """Number of levels N of a table, or of one row by column name, whose four columns are all there.

    Raises:
        MarketDataError: fewer than five levels.
    """
    columns = set(bars.columns if isinstance(bars, pl.DataFrame) else bars)
    levels = 0
    while columns.issuperset(f"{side}{levels + 1}_{field}" for side in ("bid", "ask") for field in _FIELDS):
        levels += 1
    if levels < MIN_BOOK_LEVELS:
        missing = next(name for name in book_columns(MIN_BOOK_LEVELS) if name not in columns)
        raise MarketDataError(f"a book needs at least {MIN_BOOK_LEVELS} levels, found {levels}", field=missing)
    return levels


def bar_column_names(levels: int) -> list[str]:
    """Every column of a bars table with an N-level book, in order."""
    fixed = list(BARS_SCHEMA)
    return [*fixed[:-2], *book_columns(levels), *fixed[-2:]]


def side_matrix(bars: pl.DataFrame, side: str, field: str, levels: int) -> FloatArray:
    """One side's prices or sizes, float64 (T, N), touch first; NaN where the book ends."""
    matrix: FloatArray = bars.select(f"{side}{level}_{field}" for level in range(1, levels + 1)).to_numpy()
    return matrix


def assign_segments(bars: pl.DataFrame, *, bar_minutes: int) -> pl.DataFrame:
    """Bars with the Int32 column `segment`: 0 at first, one more wherever a row does not end one bar after the last.

    A missing bar and a bar off the grid both end a segment, so no return is taken across either.
    """
    step = pl.duration(minutes=bar_minutes)
    is_break = (pl.col("timestamp").diff() != step).fill_null(value=False)
    return bars.with_columns(is_break.cum_sum().cast(pl.Int32).alias("segment"))


def apply_book_policies(bars: pl.DataFrame) -> pl.DataFrame:
    """Bars in which no spread is zero or negative, by the policy `widen`.

    In a locked (bid1 = ask1) or crossed (bid1 > ask1) row the mid is kept and the touch is moved to
    either side of it, apart by what the row was crossed and by one tick at least: the more a row
    contradicts itself, the dearer it is to trade on. Deeper levels that would lie inside are moved to
    the new touch. The tick is the smallest positive step between neighbouring levels of that same
    row, or 1 bp of the mid where the row shows none. Sizes and all other rows stay as they are, so
    both sides remain tradable and no fill is better than the mid. `validate_bars` counts the rows
    beforehand.
    """
    levels = num_book_levels(bars)
    touching = (bars["bid1_price"] >= bars["ask1_price"]).fill_null(value=False)
    rows = touching.arg_true().to_numpy()
    if not len(rows):
        return bars
    widened = widen_touch(*(side_matrix(bars[rows], side, "price", levels) for side in ("bid", "ask")))
    return bars.with_columns(
        _with_values(bars[name := f"{side}{level}_price"], rows, prices[:, level - 1]).alias(name)
        for side, prices in zip(("bid", "ask"), widened, strict=True)
        for level in range(1, levels + 1)
    )


def widen_touch(bids: FloatArray, asks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Prices of locked or crossed books by the policy `widen` (see `apply_book_policies`), bids and asks.

    Args:
        bids: float64 (T, N), touch first, NaN where a level is absent; every row locked or crossed.
        asks: float64 (T, N), likewise.
    """
    mid = (bids[:, 0] + asks[:, 0]) / 2
    half_spread = np.maximum(_visible_tick(bids, asks, mid), bids[:, 0] - asks[:, 0]) / 2
    return np.minimum(bids, (mid - half_spread)[:, None]), np.maximum(asks, (mid + half_spread)[:, None])


def _visible_tick(bids: FloatArray, asks: FloatArray, mid: FloatArray) -> FloatArray:
    steps = np.concatenate([-np.diff(bids, axis=1), np.diff(asks, axis=1)], axis=1)
    smallest = np.min(np.where(steps > 0, steps, np.inf), axis=1)
    tick: FloatArray = np.where(np.isfinite(smallest), smallest, _UNKNOWN_TICK * mid)
    return tick


def _with_values(column: pl.Series, rows: Sequence[int] | np.ndarray, values: FloatArray) -> pl.Series:
    whole = column.cast(pl.Float64).to_numpy().copy()
    whole[rows] = values
    return pl.Series(whole).fill_nan(None)
