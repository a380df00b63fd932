"""The order-level book, order by order: limit, market, IOC, FOK and post-only in price-time priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from archetype_dagster.backtest.engine.batch_book import DEFAULT_LOT_SIZE, BatchBook, OffLot
from archetype_dagster.backtest.engine.book_pool import find, queue_ahead
from archetype_dagster.backtest.engine.book_records import (
    ADD,
    AMEND,
    CANCEL,
    NEXT_ID,
    NUM_LEVELS,
    OPERATION,
    ORDER_TYPES,
    OUTCOMES,
    SIDES,
    OrderType,
    Outcome,
    RecordArray,
    SelfTradePolicy,
    Side,
    code_of,
)
from archetype_dagster.market.book_walk import Fill, walk_book
from archetype_dagster.types import FloatArray, IndexArray


def fine_lot_size(largest: float) -> float:
    """A power of two so small that rounding to it moves sizes by less than 1e-15 of `largest`.

    For books off any grid, as modelled ones are; single orders may still be eight times, and all resting ones
    together four thousand times as large.
    """
    if not 0 < largest < np.inf:
        raise ValueError(f"largest must be positive and finite, got largest={largest}")
    return float(2.0 ** (np.ceil(np.log2(largest)) - 50))


@dataclass(frozen=True, eq=False)
class Execution:
    """What became of one order; sizes in base units, filled + resting + withdrawn = size unless it was refused.

    Attributes:
        order_id: its id.
        outcome: `accepted`; `expired` and `self_trade` where a remainder was withdrawn; else why it was refused.
        filled: size taken from resting orders.
        resting: size in the book now.
        withdrawn: size expired, cancelled or amended away.
        fills: FILL rows.
        withdrawn_orders: ids of the owner's resting orders that the self-trade policy cancelled.
    """

    order_id: int
    outcome: Outcome
    filled: float
    resting: float
    withdrawn: float
    fills: RecordArray
    withdrawn_orders: IndexArray


class QueuedOrder(NamedTuple):
    """A resting order and what stands before it at its price; sizes in base units."""

    order_id: int
    owner: int
    side: Side
    price: float
    size: float
    orders_ahead: int
    size_ahead: float


class OrderBook(BatchBook):
    """A limit order book of single orders; its settings, batches and snapshots are `BatchBook`'s."""

    @classmethod
    def from_levels(
        cls,
        bid_prices: FloatArray,
        bid_sizes: FloatArray,
        ask_prices: FloatArray,
        ask_sizes: FloatArray,
        *,
        lot_size: float = DEFAULT_LOT_SIZE,
        off_lot: OffLot = "refuse",
        self_trade: SelfTradePolicy = "cancel_resting",
    ) -> Self:
        """A book in which each visible level is one resting order of the market; see `replace_market_levels`."""
        book = cls(lot_size=lot_size, off_lot=off_lot, self_trade=self_trade)
        book.replace_market_levels(bid_prices, bid_sizes, ask_prices, ask_sizes)
        return book

    @property
    def next_order_id(self) -> int:
        """The id that the next order without one gets: one more than the largest so far."""
        return int(self._state.counters[NEXT_ID])

    @property
    def best_bid(self) -> float | None:
        """Highest price of a resting buy, None where there is none."""
        return self._best(0)

    @property
    def best_ask(self) -> float | None:
        """Lowest price of a resting sell, None where there is none."""
        return self._best(1)

    def submit(
        self,
        side: Side,
        size: float,
        *,
        price: float | None = None,
        order_type: OrderType = "limit",
        owner: int = 1,
        order_id: int | None = None,
    ) -> Execution:
        """Send one order; `size` in base units, `price` for all but market orders.

        A limit order takes what it crosses and rests; `ioc` lets the rest expire; `fok` fills whole or not at
        all; `post_only` is refused where it would take; `market` takes at any price.

        Raises:
            ValueError: an unknown side or type, no price, or a number out of range.
        """
        if (price is None) != (order_type == "market"):
            raise ValueError(f"a market order has no price and any other has one, got {order_type} price={price}")
        kind = (code_of("side", side, SIDES), code_of("order_type", order_type, ORDER_TYPES))
        number = self.next_order_id if order_id is None else order_id
        return self._one(ADD, number, owner, 0.0 if price is None else price, size, *kind)

    def cancel(self, order_id: int) -> Execution:
        """Take a resting order out; outcome `unknown_order` where it does not rest."""
        return self._one(CANCEL, order_id, 0, 0.0, 0.0, 0, 0)

    def amend(self, order_id: int, *, price: float, size: float, post_only: bool = False) -> Execution:
        """Change a resting order to `size` resting at `price`; see `apply` for its place in the queue."""
        order_type = ORDER_TYPES.index("post_only" if post_only else "limit")
        return self._one(AMEND, order_id, 0, price, size, 0, order_type)

    def order(self, order_id: int) -> QueuedOrder:
        """A resting order with its place in the queue.

        Raises:
            ValueError: no such order rests.
        """
        place = find(self._state.ids, order_id)
        if place < 0:
            raise ValueError(f"order_id must be of a resting order, got order_id={order_id}")
        slot = int(self._state.ids[place, 1])
        row = self._state.orders[slot]
        count, lots = queue_ahead(self._state, slot)
        size, ahead = self._size(int(row["lots"])), self._size(lots)
        side = SIDES[self._state.levels[row["level"]]["side"]]
        return QueuedOrder(order_id, int(row["owner"]), side, float(row["price"]), size, count, ahead)

    def market_cost(self, side: Side, size: float, *, mark: float | None = None) -> Fill:
        """What a market order of `size` would pay and find, by the one walk of the cost tables.

        Args:
            side: of the order; a buy walks the asks.
            size: base units, not negative.
            mark: where given, `cash` is the loss against this price, each level's at least zero.

        Returns:
            cash in quote units, filled and unfilled size; pricing the unfilled is the depth policy's part.
        """
        prices, sizes = self.depth("sell" if side == "buy" else "buy")
        if mark is not None:
            prices = np.maximum(prices - mark if side == "buy" else mark - prices, 0.0)
        return walk_book(prices, sizes, size)

    def _best(self, side: int) -> float | None:
        count = self._state.counters[NUM_LEVELS + side]
        return float(self._state.keys[side, count - 1]) * (1 - 2 * side) if count else None

    def _size(self, lots: int) -> float:
        lot_size, lots_per_unit, _ = self._grid
        return lots / lots_per_unit if lots_per_unit else lots * lot_size

    def _one(self, kind: int, number: int, owner: int, price: float, size: float, side: int, of: int) -> Execution:
        operation = np.array([(number, owner, price, size, kind, side, of)], OPERATION)
        batch = self.apply(operation)
        *lots, outcome = batch.results[0].item()
        filled, resting, withdrawn = (self._size(amount) for amount in lots)
        return Execution(number, OUTCOMES[outcome], filled, resting, withdrawn, batch.fills, batch.withdrawn)
