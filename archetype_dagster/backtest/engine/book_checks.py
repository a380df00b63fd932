"""Compiled door of the order book: sizes become whole lots, and what no book could take is named."""

from __future__ import annotations

from typing import Final

import numpy as np

from archetype_dagster.backtest.engine.book_records import (
    ADD,
    AMEND,
    CANCEL,
    FOK,
    IOC,
    LIMIT,
    MARKET,
    POST_ONLY,
    SELL,
    RecordArray,
)
from archetype_dagster.backtest.engine.compiled import compiled
from archetype_dagster.types import FloatArray, IndexArray

MOST_LOTS: Final = 2.0**53
_OFF_LOT = 1e-6
_ROUNDING = 1e-15

FAULTS: Final = {
    1: ("kind", "must be 0 (add), 1 (cancel) or 2 (amend)"),
    2: ("order_id", "must be positive"),
    3: ("type", "must be 0 to 4 (limit, market, ioc, fok, post_only); an amend takes limit and post_only"),
    4: ("side", "must be 0 (buy) or 1 (sell)"),
    5: ("owner", "must not be negative"),
    6: ("price", "must be positive and finite"),
    7: ("size", "must be positive and finite"),
    8: ("size", "must be at least half a lot of {lot_size}"),
    9: ("size", "must be whole lots of {lot_size}; off_lot='round' takes the nearest"),
    10: ("size", "must be at most 2^53 lots of {lot_size}"),
    11: ("size", "must be finite and not negative"),
    12: ("price", "must be strictly worse than the level before"),
}
"""Field and rule of each fault number."""


@compiled
def lots_of(size: float, lot_size: float, lots_per_unit: float, rounds: bool) -> int:
    """Whole lots of a size; -1 for a size off the lot unless it `rounds`, -2 for more than 2^53 lots."""
    exact = size * lots_per_unit if lots_per_unit > 0.0 else size / lot_size
    if exact > MOST_LOTS:
        return -2
    whole = np.rint(exact)
    if not rounds and abs(exact - whole) > _OFF_LOT + _ROUNDING * exact:
        return -1
    return int(whole)


@compiled
def check_operations(
    operations: RecordArray, lots: IndexArray, lot_size: float, lots_per_unit: float, rounds: bool
) -> tuple[int, int, float]:
    """Write the lots of each operation; give the first faulty row and its fault (-1, 0: none), and the sum of lots."""
    total = 0.0
    for row in range(operations.shape[0]):
        operation = operations[row]
        kind, order_type = operation["kind"], operation["type"]
        lots[row] = 0
        if kind < ADD or kind > AMEND:
            return row, 1, total
        if operation["order_id"] <= 0:
            return row, 2, total
        if kind == CANCEL:
            continue
        takes_only = order_type in (MARKET, IOC, FOK)
        if order_type < LIMIT or order_type > POST_ONLY or (kind == AMEND and takes_only):
            return row, 3, total
        if kind == ADD and (operation["side"] < 0 or operation["side"] > SELL):
            return row, 4, total
        if kind == ADD and operation["owner"] < 0:
            return row, 5, total
        if order_type != MARKET and not 0.0 < operation["price"] < np.inf:
            return row, 6, total
        if not 0.0 < operation["size"] < np.inf:
            return row, 7, total
        lots[row] = lots_of(operation["size"], lot_size, lots_per_unit, rounds)
        if lots[row] <= 0:
            return row, 8 - lots[row], total
        total += lots[row]
    return -1, 0, total


@compiled
def read_levels(
    side: int,
    prices: FloatArray,
    sizes: FloatArray,
    kept_prices: FloatArray,
    lots: IndexArray,
    lot_size: float,
    lots_per_unit: float,
    rounds: bool,
) -> tuple[int, int, int]:
    """Write the levels that hold something; give their number, the first faulty level and its fault (-1, 0: none).

    A size of zero, or a NaN price whose size is NaN too, is no level.
    """
    kept = 0
    for level in range(prices.shape[0]):
        price, size = prices[level], sizes[level]
        if size == 0.0 or (np.isnan(price) and np.isnan(size)):
            continue
        if not 0.0 < size < np.inf:
            return kept, level, 11
        if not 0.0 < price < np.inf:
            return kept, level, 6
        whole = lots_of(size, lot_size, lots_per_unit, rounds)
        if whole < 0:
            return kept, level, 8 - whole
        if kept > 0 and (price >= kept_prices[kept - 1] if side != SELL else price <= kept_prices[kept - 1]):
            return kept, level, 12
        if whole > 0:
            kept_prices[kept], lots[kept] = price, whole
            kept += 1
    return kept, -1, 0
