"""Codes and array layouts of the order book: what goes into the compiled code and what comes out of it.

Codes and layouts are written into snapshots and diffs: they are added to, never renumbered.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.types import FloatArray, IndexArray

Side = Literal["buy", "sell"]
OrderType = Literal["limit", "market", "ioc", "fok", "post_only"]
SelfTradePolicy = Literal["cancel_resting", "cancel_incoming", "allow"]
Outcome = Literal["accepted", "expired", "self_trade", "would_cross", "cannot_fill", "duplicate_id", "unknown_order"]
RecordArray = NDArray[np.void]
_Choice = TypeVar("_Choice", bound=str)

BUY: Final = 0
SELL: Final = 1
SIDES: Final[tuple[Side, ...]] = ("buy", "sell")

LIMIT: Final = 0
MARKET: Final = 1
IOC: Final = 2
FOK: Final = 3
POST_ONLY: Final = 4
ORDER_TYPES: Final[tuple[OrderType, ...]] = ("limit", "market", "ioc", "fok", "post_only")

ADD: Final = 0
CANCEL: Final = 1
AMEND: Final = 2

CANCEL_RESTING: Final = 0
CANCEL_INCOMING: Final = 1
ALLOW: Final = 2
SELF_TRADE_POLICIES: Final[tuple[SelfTradePolicy, ...]] = ("cancel_resting", "cancel_incoming", "allow")

ACCEPTED: Final = 0
EXPIRED: Final = 1
SELF_TRADE: Final = 2
WOULD_CROSS: Final = 3
CANNOT_FILL: Final = 4
DUPLICATE_ID: Final = 5
UNKNOWN_ORDER: Final = 6
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "accepted",
    "expired",
    "self_trade",
    "would_cross",
    "cannot_fill",
    "duplicate_id",
    "unknown_order",
)

MARKET_OWNER: Final = 0

OPERATION: Final = np.dtype(
    [
        ("order_id", np.int64),
        ("owner", np.int64),
        ("price", np.float64),
        ("size", np.float64),
        ("kind", np.int64),
        ("side", np.int64),
        ("type", np.int64),
    ],
    align=True,
)
"""An ADD, CANCEL or AMEND. A cancel reads the id only; an amend id, price, type and size, which is what is to rest."""

RESULT: Final = np.dtype(
    [("filled", np.int64), ("resting", np.int64), ("withdrawn", np.int64), ("outcome", np.int64)], align=True
)
"""What became of one operation, in lots: filled as taker, resting now, withdrawn by expiry, self-trade or cancel."""

FILL: Final = np.dtype(
    [
        ("maker_id", np.int64),
        ("taker_id", np.int64),
        ("maker_owner", np.int64),
        ("taker_owner", np.int64),
        ("operation", np.int64),
        ("price", np.float64),
        ("size", np.float64),
        ("lots", np.int64),
        ("aggressor", np.int64),
    ],
    align=True,
)
"""A fill at the maker's price; `aggressor` is the taker's side, `operation` its place in the batch, -1 in a reseed."""

RESTING: Final = np.dtype(
    [
        ("order_id", np.int64),
        ("owner", np.int64),
        ("price", np.float64),
        ("size", np.float64),
        ("lots", np.int64),
        ("sequence", np.int64),
        ("queue_position", np.int64),
        ("side", np.int64),
    ],
    align=True,
)
"""A resting order: `queue_position` counts the orders before it at its price, `sequence` numbers its arrival."""

ORDER: Final = np.dtype(
    [
        ("order_id", np.int64),
        ("owner", np.int64),
        ("price", np.float64),
        ("lots", np.int64),
        ("sequence", np.int64),
        ("ahead", np.int64),
        ("behind", np.int64),
        ("level", np.int64),
    ],
    align=True,
)
LEVEL: Final = np.dtype([("lots", np.int64), ("head", np.int64), ("tail", np.int64), ("side", np.int64)], align=True)

NUM_LEVELS: Final = 0
FREE_ORDER: Final = 2
FREE_LEVEL: Final = 3
NUM_ORDERS: Final = 4
NEXT_SEQUENCE: Final = 5
NEXT_ID: Final = 6
NEXT_MARKET_ID: Final = 7
NUM_COUNTERS: Final = 8


class BookState(NamedTuple):
    """All of a book in flat arrays.

    Attributes:
        orders: ORDER (capacity,), the pool; free slots are chained by `behind`.
        levels: LEVEL (capacity,), queues of one price each; free ones are chained by `head`.
        keys: float64 (2, capacity), per side the prices of its levels, ascending towards the best: bids as they
            are, asks negated.
        queues: int64 (2, capacity), the level that belongs to each key.
        ids: int64 (size, 2), open-addressed table of (order id, slot); id 0 is an empty place.
        counters: int64 (NUM_COUNTERS,), by the names above; the first two count the levels of each side.
    """

    orders: RecordArray
    levels: RecordArray
    keys: FloatArray
    queues: IndexArray
    ids: IndexArray
    counters: IndexArray


class Tape(NamedTuple):
    """Where a batch writes what it did.

    Attributes:
        fills: FILL, room for every fill the batch can make.
        withdrawn: int64, ids of resting orders that a self-trade policy cancelled.
        counts: int64 (2,), fills and withdrawn ids written.
        lot_size: base units of one lot.
        lots_per_unit: its inverse where that is a whole number, else 0.
        policy: self-trade policy.
    """

    fills: RecordArray
    withdrawn: IndexArray
    counts: IndexArray
    lot_size: float
    lots_per_unit: float
    policy: int


def empty_state(capacity: int) -> BookState:
    """A book without orders and with room for `capacity` of them."""
    orders, levels = np.zeros(capacity, ORDER), np.zeros(capacity, LEVEL)
    chain = np.arange(1, capacity + 1)
    chain[-1] = -1
    orders["behind"], levels["head"] = chain, chain
    counters = np.zeros(NUM_COUNTERS, np.int64)
    counters[NEXT_SEQUENCE], counters[NEXT_ID], counters[NEXT_MARKET_ID] = 0, 1, -1
    size = 1 << (2 * capacity - 1).bit_length()
    return BookState(
        orders,
        levels,
        np.zeros((2, capacity)),
        np.empty((2, capacity), np.int64),
        np.zeros((size, 2), np.int64),
        counters,
    )


def code_of(name: str, value: _Choice, choices: tuple[_Choice, ...]) -> int:
    """Place of a value among its choices.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {name}={value!r}")
    return choices.index(value)
