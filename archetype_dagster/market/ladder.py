"""The shape shared by every book we make ourselves: N levels a side on the tick grid around a close."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import book_columns
from archetype_dagster.types import FloatArray

_MOST_STEPS_PER_TICK: Final = 100.0


@dataclass(frozen=True)
class LadderShape:
    """Distances of a book's levels, in quote units.

    Attributes:
        spread: float64 (T,), ask1 - bid1 before rounding.
        level_step: float64 (T,), distance between neighbouring levels before rounding.
    """

    spread: FloatArray
    level_step: FloatArray

    def steps_per_tick(self, tick_size: float) -> FloatArray:
        """Levels that fall into one tick where the tick is wider than a step, float64 (T,), 1 to 100.

        Showing the size of so many levels at one tick leaves the liquidity within a distance as it was.
        """
        finest = tick_size / _MOST_STEPS_PER_TICK
        return np.maximum(tick_size / np.maximum(self.level_step, finest), 1.0)


def ladder_frame(
    close: FloatArray, shape: LadderShape, bid_sizes: FloatArray, ask_sizes: FloatArray, *, tick_size: float
) -> pl.DataFrame:
    """Book columns of a table in which row t depends on row t of the arguments only.

    Prices are whole ticks, the spread and every step at least one tick, so bids fall and asks rise
    strictly. With a spread of one tick the close is the best bid, as after a trade at the bid.

    Args:
        close: float64 (T,), last price in quote units.
        shape: spread and steps.
        bid_sizes: float64 (N, T), base units, touch first.
        ask_sizes: float64 (N, T), likewise.
        tick_size: smallest price step in quote units.

    Returns:
        The columns of `book_columns(N)`, Float64 (T rows).

    Raises:
        MarketDataError: a level would cost nothing or less; names the row.
    """
    levels = len(bid_sizes)
    spread = np.maximum(np.rint(shape.spread / tick_size), 1.0)
    step = np.maximum(shape.level_step / tick_size, 1.0)
    best_bid = np.rint(close / tick_size) - (spread - 1) // 2
    worst_bid = best_bid - np.rint(step * (levels - 1))
    if (worst_bid <= 0).any():
        row = int(np.flatnonzero(worst_bid <= 0)[0])
        raise MarketDataError(
            f"price {close[row]:g} is too low for {levels} levels of tick {tick_size:g}", row=row, field="close"
        )

    def columns() -> Iterator[FloatArray]:
        for level in range(levels):
            behind = np.rint(step * level)
            yield _prices(best_bid - behind, tick_size)
            yield bid_sizes[level]
            yield _prices(best_bid + spread + behind, tick_size)
            yield ask_sizes[level]

    return pl.DataFrame(dict(zip(book_columns(levels), columns(), strict=True)))


def round_to_tick(price: FloatArray, tick_size: float) -> FloatArray:
    """Prices moved to the nearest whole tick."""
    return _prices(np.rint(price / tick_size), tick_size)


def _prices(ticks: FloatArray, tick_size: float) -> FloatArray:
    # 3700013 / 100 is 37000.13, while 3700013 * 0.01 is 37000.130000000005.
    per_unit = round(1 / tick_size)
    prices: FloatArray = ticks / per_unit if np.isclose(per_unit * tick_size, 1.0, rtol=1e-12) else ticks * tick_size
    return prices
