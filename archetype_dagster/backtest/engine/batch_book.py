"""Batches of orders on a book in flat arrays: checks, memory, snapshots and the market's next levels.

Sizes are whole lots inside, so that nothing is ever left over by rounding; prices are the floats they came as,
since a book only compares them. Owner 0 is the market at large: many strangers, whom no self-trade policy
concerns; snapshots of visible levels rest as its orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from archetype_dagster.backtest.engine.book_checks import FAULTS, check_operations, read_levels
from archetype_dagster.backtest.engine.book_diff import BookCounters, BookSnapshot, sizes_of
from archetype_dagster.backtest.engine.book_pool import find, list_orders, rest_all, with_room
from archetype_dagster.backtest.engine.book_records import (
    FILL,
    NEXT_ID,
    NEXT_MARKET_ID,
    NEXT_SEQUENCE,
    NUM_LEVELS,
    NUM_ORDERS,
    OPERATION,
    RESTING,
    RESULT,
    SELF_TRADE_POLICIES,
    SIDES,
    RecordArray,
    SelfTradePolicy,
    Side,
    Tape,
    code_of,
    empty_state,
)
from archetype_dagster.backtest.engine.instruments import whole_inverse
from archetype_dagster.backtest.engine.order_book_kernel import apply_operations, reseed
from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import FloatArray, IndexArray

OffLot = Literal["refuse", "round"]
DEFAULT_LOT_SIZE: Final = 1e-8
_SMALLEST: Final = 256
_CHUNK: Final = 8192
_MOST_RESTING_LOTS: Final = 2**62


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What a batch of operations did.

    Attributes:
        results: RESULT (n,), one for each operation.
        fills: FILL, in the order they happened.
        withdrawn: int64, ids of resting orders cancelled by the self-trade policy.
    """

    results: RecordArray
    fills: RecordArray
    withdrawn: IndexArray


class BatchBook:
    """An order book that takes its orders as arrays; `OrderBook` adds what is convenient for one order.

    Args:
        lot_size: base units of one lot, the step of every size inside.
        off_lot: `refuse` sizes that are no whole lots, or `round` to the nearest lot.
        self_trade: what an order does that meets one of its owner: `cancel_resting` the older one,
            `cancel_incoming` (its own remainder), or `allow` the trade.

    Raises:
        ValueError: an unknown policy, or a lot size that is not positive and finite.
    """

    def __init__(
        self,
        *,
        lot_size: float = DEFAULT_LOT_SIZE,
        off_lot: OffLot = "refuse",
        self_trade: SelfTradePolicy = "cancel_resting",
    ) -> None:
        if not 0 < lot_size < np.inf:
            raise ValueError(f"lot_size must be positive and finite, got lot_size={lot_size}")
        self.lot_size = float(lot_size)
        self._grid = (self.lot_size, whole_inverse(lot_size), code_of("off_lot", off_lot, get_args(OffLot)) == 1)
        self._policy = code_of("self_trade", self_trade, SELF_TRADE_POLICIES)
        self._state = empty_state(_SMALLEST)
        self._tape = self._new_tape(2 * _SMALLEST)
        self._most_lots = 0.0

    def __len__(self) -> int:
        return int(self._state.counters[NUM_ORDERS])

    def __contains__(self, order_id: int) -> bool:
        return find(self._state.ids, order_id) >= 0

    def apply(self, operations: RecordArray) -> BatchResult:
        """Carry out operations in order, compiled; all are checked before the first is carried out.

        Args:
            operations: OPERATION (n,); ids are the caller's, positive and free when added. An amend at the
                same price to no more than the resting size keeps its place in the queue, any other loses it,
                may trade, and is refused as a whole where it is post-only and would.

        Raises:
            ValueError: another dtype, a field out of range, or more lots than the book can count.
        """
        if operations.dtype != OPERATION or operations.ndim != 1:
            raise ValueError(f"operations must be OPERATION (n,), got {operations.dtype} {operations.shape}")
        lots = np.empty(len(operations), np.int64)
        row, fault, total = check_operations(operations, lots, *self._grid)
        if fault:
            field, rule = FAULTS[fault]
            value = operations[field][row]
            raise ValueError(f"operation {row}: {field} {rule.format(lot_size=self.lot_size)}, got {field}={value}")
        self._count_lots(total)
        results = np.empty(len(operations), RESULT)
        parts = []
        # Short chunks keep the pool and its table as large as the book, not as the batch.
        for start in range(0, len(operations), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self._make_room(len(lots[chunk]))
            apply_operations(self._state, self._tape, operations[chunk], lots[chunk], start, results[chunk])
            parts.append(self._written())
        if len(parts) == 1:
            return BatchResult(results, *parts[0])
        fills = [np.empty(0, FILL), *(part[0] for part in parts)]
        withdrawn = [np.empty(0, np.int64), *(part[1] for part in parts)]
        return BatchResult(results, np.concatenate(fills), np.concatenate(withdrawn))

    def depth(self, side: Side) -> tuple[FloatArray, FloatArray]:
        """Prices and sizes of the resting buys or sells by level, each float64 (N,), best first."""
        code = code_of("side", side, SIDES)
        count = self._state.counters[NUM_LEVELS + code]
        prices = self._state.keys[code, :count][::-1] * (1 - 2 * code)
        lots = self._state.levels["lots"][self._state.queues[code, :count][::-1]]
        return prices, sizes_of(lots, self.lot_size)

    def replace_market_levels(
        self, bid_prices: FloatArray, bid_sizes: FloatArray, ask_prices: FloatArray, ask_sizes: FloatArray
    ) -> RecordArray:
        """Turn the market's resting size into that of a new snapshot; all other orders keep their place.

        At a price whose market size falls, orders at the back of the queue leave first; where it grows, the
        growth joins at the back. So the size before an own order never grows, and shrinks only when the
        visible size no longer covers it. A level that reaches through a resting order of somebody else
        arrives as a limit order: it fills that order at that order's price and rests with what is left.

        Args:
            bid_prices: float64 (N,), best first; all four in quote or base units. A size of zero, or NaN in
                both price and size, is no level.

        Returns:
            FILL rows of orders that the new levels filled, the market's id negative.

        Raises:
            MarketDataError: a price or size out of range, levels out of order, or bids that reach the asks.
            ValueError: prices and sizes of different shapes, or more lots than the book can count.
        """
        bids, bid_lots = self._levels(0, bid_prices, bid_sizes)
        asks, ask_lots = self._levels(1, ask_prices, ask_sizes)
        if len(bids) and len(asks) and bids[0] >= asks[0]:
            raise MarketDataError(f"the best bid must be below the best ask, got {bids[0]} and {asks[0]}")
        self._count_lots(float(bid_lots.sum(dtype=np.float64) + ask_lots.sum(dtype=np.float64)))
        self._make_room(len(bids) + len(asks))
        reseed(self._state, self._tape, (bids, asks), (bid_lots, ask_lots))
        return self._written()[0]

    def snapshot(self) -> BookSnapshot:
        """Every resting order and the next numbers."""
        counters = self._state.counters
        numbers = BookCounters(*(int(counters[name]) for name in (NEXT_SEQUENCE, NEXT_ID, NEXT_MARKET_ID)))
        return BookSnapshot(self._orders(), numbers, self.lot_size)

    def restore(self, snapshot: BookSnapshot) -> None:
        """Become the book of a snapshot; nothing changes where the snapshot is refused.

        Raises:
            ValueError: another lot size, or orders that no book could hold in these places.
        """
        if snapshot.lot_size != self.lot_size:
            raise ValueError(f"lot_size must be the book's {self.lot_size}, got lot_size={snapshot.lot_size}")
        rows = snapshot.orders
        sound = (rows["lots"] > 0) & (rows["price"] > 0) & np.isfinite(rows["price"]) & (rows["owner"] >= 0)
        sound &= (rows["side"] == 0) | (rows["side"] == 1)
        if not sound.all() or len(np.unique(rows["order_id"])) < len(rows) or (rows["order_id"] == 0).any():
            raise ValueError("a snapshot's orders must have distinct ids, positive lots and prices, and a side")
        book = BatchBook(lot_size=self.lot_size)
        book._make_room(len(rows))
        rest_all(book._state, rows)
        for name, number in zip((NEXT_SEQUENCE, NEXT_ID, NEXT_MARKET_ID), snapshot.counters, strict=True):
            book._state.counters[name] = number
        same = np.array_equal(book._orders(), rows)
        bids, asks = book.depth("buy")[0], book.depth("sell")[0]
        if not same or (len(bids) and len(asks) and bids[0] >= asks[0]):
            raise ValueError("a snapshot's orders must stand in price-time priority, bids below asks")
        self._state = book._state
        self._most_lots = float(rows["lots"].sum(dtype=np.float64))

    def _levels(self, side: int, prices: FloatArray, sizes: FloatArray) -> tuple[FloatArray, IndexArray]:
        prices, sizes = np.ascontiguousarray(prices, np.float64), np.ascontiguousarray(sizes, np.float64)
        if prices.ndim != 1 or prices.shape != sizes.shape:
            raise ValueError(f"prices and sizes must have one shape (N,), got {prices.shape} and {sizes.shape}")
        kept, lots = np.empty(len(prices)), np.empty(len(prices), np.int64)
        count, level, fault = read_levels(side, prices, sizes, kept, lots, *self._grid)
        if fault:
            field, rule = FAULTS[fault]
            value = (prices if field == "price" else sizes)[level]
            name = f"{('bid', 'ask')[side]}{level + 1}_{field}"
            raise MarketDataError(f"{rule.format(lot_size=self.lot_size)}, got {value}", field=name)
        return kept[:count], lots[:count]

    def _orders(self) -> RecordArray:
        rows = np.zeros(len(self), RESTING)
        list_orders(self._state, rows)
        rows["size"] = sizes_of(rows["lots"], self.lot_size)
        return rows

    def _make_room(self, new_orders: int) -> None:
        """Room for the orders, fills and withdrawals of so many operations, and a clean tape."""
        wanted = len(self) + new_orders
        if wanted > len(self._state.orders):
            self._state = with_room(self._state, 2 * wanted)
        # Each fill ends a resting order, new or old, or the operation it belongs to.
        if wanted + new_orders > len(self._tape.fills):
            self._tape = self._new_tape(2 * (wanted + new_orders))
        self._tape.counts[:] = 0

    def _new_tape(self, length: int) -> Tape:
        counts = np.zeros(2, np.int64)
        return Tape(np.zeros(length, FILL), np.empty(length, np.int64), counts, *self._grid[:2], self._policy)

    def _written(self) -> tuple[RecordArray, IndexArray]:
        fills, withdrawn = self._tape.counts
        return self._tape.fills[:fills].copy(), self._tape.withdrawn[:withdrawn].copy()

    def _count_lots(self, new: float) -> None:
        """Keep sums of lots inside 64 bits: an upper bound first, the real sum where that is too large."""
        self._most_lots += new
        if self._most_lots > _MOST_RESTING_LOTS:
            self._most_lots = float(self._orders()["lots"].sum(dtype=np.float64)) + new
            if self._most_lots > _MOST_RESTING_LOTS:
                raise ValueError(f"the book holds at most 2^62 lots: lot_size={self.lot_size} is too small")
