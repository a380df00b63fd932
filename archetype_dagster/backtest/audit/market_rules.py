"""Rules that hold a ledger against the market it says it traded: its bars, its orders and its books."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.ledger import RECONCILIATION_TOLERANCE, Ledger
from archetype_dagster.backtest.replay import PricedBars
from archetype_dagster.market.order_books import BookSide, order_books
from archetype_dagster.settings import ExecutionSettings
from archetype_dagster.types import FLAT, LONG, SHORT, BoolArray, FloatArray, IndexArray

ALIGNED: Final = "bars are those of the market, none left out"


def aligned_rows(ledger: Ledger, bar_ends: NDArray[np.datetime64]) -> tuple[IndexArray, BoolArray]:
    """Bar of each ledger row, int64 (T,), and whether it ends when the ledger says, bool (T,).

    Args:
        ledger: T bars.
        bar_ends: datetime64[us] (N,), the market's bars, increasing.
    """
    rows = np.searchsorted(bar_ends, ledger.timestamps[0]) + np.arange(len(ledger))
    found = np.minimum(rows, len(bar_ends) - 1)
    return found, (rows < len(bar_ends)) & (bar_ends[found] == ledger.timestamps)


def market_rules(
    ledger: Ledger, bars: pl.DataFrame, priced: PricedBars, settings: ExecutionSettings
) -> dict[str, BoolArray]:
    """Rules by name, bool (T,) where each holds.

    The mark is the mid of that bar's book. A trade needs an order of the same segment, given
    `execution_delay_bars` before: none executes on a bar behind a gap by an order from before it. The
    position is what that order asked for. No unit is traded on an empty side, and every fill lies
    between the touch and the worst visible level, or beyond it only where the size exceeds the visible
    depth and the depth policy extrapolates. The slippage is exactly that of walking the book.

    Args:
        ledger: T bars.
        bars: the same T bars in the bars schema.
        priced: their prices under `settings`.
        settings: delay, depth policy and horizon boundary.
    """
    delay = settings.execution_delay_bars
    source = np.arange(len(ledger)) - delay
    ordered = (source >= 0) & (priced.segment[np.maximum(source, 0)] == priced.segment)
    wanted = priced.max_position * (ledger.action[np.maximum(source, 0)] - FLAT).astype(np.float64)
    books = order_books(bars)
    money = RECONCILIATION_TOLERANCE * priced.max_position * priced.mark
    bought, sold = (ledger.turnover + ledger.traded) / 2, (ledger.turnover - ledger.traded) / 2
    asks, bids = _Reach(books.ask, priced.mark, 1.0), _Reach(books.bid, priced.mark, -1.0)
    nothing = RECONCILIATION_TOLERANCE * priced.max_position
    tradable = ((bought <= nothing) | ~books.ask.empty) & ((sold <= nothing) | ~books.bid.empty)
    nearest = bought * asks.touch + sold * bids.touch
    farthest = bought * asks.worst + sold * bids.worst
    beyond = ((bought > asks.visible) | (sold > bids.visible)) & (settings.depth_policy == "extrapolate")
    inside = (ledger.slippage >= nearest - money) & ((ledger.slippage <= farthest + money) | beyond)
    return {
        "mark is the mid of the book": np.abs(ledger.mark - priced.mark) <= RECONCILIATION_TOLERANCE * priced.mark,
        "no trade by an order from before a gap": ordered | (ledger.turnover == 0),
        "position is what the order asked for": ~ordered | (np.abs(ledger.position - wanted) <= nothing),
        "no trade on an empty side of the book": tradable,
        "fills lie inside the book": inside | ~tradable,
        "slippage is that of walking the book": _is_walked(ledger, priced, settings, money),
    }


class _Reach:
    """How far one side lies from the mark at its touch and its worst level, and what it holds, float64 (T,) each."""

    def __init__(self, side: BookSide, mark: FloatArray, sign: float) -> None:
        distance = np.maximum(sign * (np.where(side.empty, mark, side.prices.T) - mark), 0.0)
        self.touch = distance[0]
        self.worst = distance.max(axis=0)
        self.visible = side.sizes.sum(axis=1)


def _is_walked(ledger: Ledger, priced: PricedBars, settings: ExecutionSettings, money: FloatArray) -> BoolArray:
    """Whether the slippage is the priced one of the change of position; off-grid positions are another rule's."""
    rows = np.arange(len(ledger))
    after = np.rint(ledger.position / priced.max_position).astype(np.int64) + FLAT
    before = np.concatenate([[FLAT], after[:-1]])
    on_grid = (after >= SHORT) & (after <= LONG) & (before >= SHORT) & (before <= LONG)
    after, before = np.clip(after, SHORT, LONG), np.clip(before, SHORT, LONG)
    direct = priced.slippage[rows, before, after]
    matches = np.abs(ledger.slippage - direct) <= money
    if settings.horizon_boundary == "settle":
        through_flat = priced.slippage[rows, before, FLAT] + priced.slippage[rows, FLAT, after]
        units = priced.max_position * (np.abs(before - FLAT) + np.abs(after - FLAT))
        matches |= (ledger.turnover == units) & (np.abs(ledger.slippage - through_flat) <= money)
    return np.asarray(matches | ~on_grid, dtype=np.bool_)
