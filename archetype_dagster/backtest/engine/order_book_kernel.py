"""Compiled matching: batches of operations in price-time priority, and the market's levels from a new snapshot."""

from __future__ import annotations

import numpy as np

from archetype_dagster.backtest.engine.book_pool import find, key_of, position_of, reduce, remove, rest
from archetype_dagster.backtest.engine.book_records import (
    ACCEPTED,
    ADD,
    ALLOW,
    CANCEL,
    CANCEL_INCOMING,
    CANCEL_RESTING,
    CANNOT_FILL,
    DUPLICATE_ID,
    EXPIRED,
    FOK,
    IOC,
    MARKET,
    MARKET_OWNER,
    NEXT_ID,
    NEXT_MARKET_ID,
    NEXT_SEQUENCE,
    NUM_LEVELS,
    POST_ONLY,
    SELF_TRADE,
    UNKNOWN_ORDER,
    WOULD_CROSS,
    BookState,
    RecordArray,
    Tape,
)
from archetype_dagster.backtest.engine.compiled import compiled
from archetype_dagster.types import FloatArray, IndexArray

RESEED = -1


@compiled
def _crosses(state: BookState, side: int, limit: float) -> bool:
    """Whether a taker with the limit key of its own side meets the best price of the other side."""
    count = state.counters[NUM_LEVELS + 1 - side]
    return bool(count > 0 and state.keys[1 - side, count - 1] >= -limit)


@compiled
def _can_fill(state: BookState, side: int, limit: float, lots: int, owner: int, policy: int) -> bool:
    """Whether the other side holds `lots` within the limit that the self-trade policy lets the owner take."""
    other = 1 - side
    for position in range(state.counters[NUM_LEVELS + other] - 1, -1, -1):
        if state.keys[other, position] < -limit:
            return False
        slot = state.levels[state.queues[other, position]]["head"]
        while slot >= 0:
            order = state.orders[slot]
            if policy == ALLOW or owner == MARKET_OWNER or order["owner"] != owner:
                lots -= order["lots"]
                if lots <= 0:
                    return True
            elif policy == CANCEL_INCOMING:
                return False
            slot = order["behind"]
    return False


@compiled
def _match(
    state: BookState, tape: Tape, order_id: int, owner: int, side: int, limit: float, lots: int, row: int
) -> tuple[int, bool]:
    """Take from the other side, best price and oldest order first; lots left and whether an own order stopped it."""
    other = 1 - side
    fills, counts = tape.fills, tape.counts
    while lots > 0 and _crosses(state, side, limit):
        level = state.queues[other, state.counters[NUM_LEVELS + other] - 1]
        slot = state.levels[level]["head"]
        maker = state.orders[slot]
        if owner != MARKET_OWNER and maker["owner"] == owner:
            if tape.policy == CANCEL_INCOMING:
                return lots, True
            if tape.policy == CANCEL_RESTING:
                tape.withdrawn[counts[1]] = maker["order_id"]
                counts[1] += 1
                remove(state, slot)
                continue
        taken = min(lots, maker["lots"])
        at = counts[0]
        fills[at]["maker_id"], fills[at]["taker_id"] = maker["order_id"], order_id
        fills[at]["maker_owner"], fills[at]["taker_owner"] = maker["owner"], owner
        fills[at]["operation"], fills[at]["price"], fills[at]["lots"] = row, maker["price"], taken
        fills[at]["size"] = taken / tape.lots_per_unit if tape.lots_per_unit > 0.0 else taken * tape.lot_size
        fills[at]["aggressor"] = side
        counts[0] = at + 1
        lots -= taken
        reduce(state, slot, taken)
    return lots, False


@compiled
def _rest_new(state: BookState, order_id: int, owner: int, side: int, price: float, lots: int) -> None:
    rest(state, order_id, owner, side, price, lots, state.counters[NEXT_SEQUENCE])
    state.counters[NEXT_SEQUENCE] += 1


@compiled
def _submit(
    state: BookState,
    tape: Tape,
    order_id: int,
    owner: int,
    side: int,
    order_type: int,
    price: float,
    lots: int,
    row: int,
) -> tuple[int, int, int]:
    """Outcome, lots filled and lots resting of an order whose id is free."""
    limit = np.inf if order_type == MARKET else key_of(side, price)
    if order_type == POST_ONLY and _crosses(state, side, limit):
        return WOULD_CROSS, 0, 0
    if order_type == FOK and not _can_fill(state, side, limit, lots, owner, tape.policy):
        return CANNOT_FILL, 0, 0
    left, stopped = _match(state, tape, order_id, owner, side, limit, lots, row)
    if left == 0:
        return ACCEPTED, lots, 0
    if stopped:
        return SELF_TRADE, lots - left, 0
    if order_type in (MARKET, IOC):
        return EXPIRED, lots - left, 0
    _rest_new(state, order_id, owner, side, price, left)
    return ACCEPTED, lots - left, left


@compiled
def apply_operations(
    state: BookState, tape: Tape, operations: RecordArray, lots: IndexArray, first_row: int, results: RecordArray
) -> None:
    """Carry out checked operations in order, one result each; `first_row` is their place in the whole batch."""
    orders, counters = state.orders, state.counters
    for row in range(operations.shape[0]):
        operation = operations[row]
        order_id, kind, order_type, wanted = operation["order_id"], operation["kind"], operation["type"], lots[row]
        owner, side, price = operation["owner"], operation["side"], operation["price"]
        outcome, filled, resting, withdrawn, enters = ACCEPTED, 0, 0, 0, False
        place = find(state.ids, order_id)
        if kind == ADD:
            enters = place < 0
            if enters:
                counters[NEXT_ID] = max(counters[NEXT_ID], order_id + 1)
            else:
                outcome = DUPLICATE_ID
        elif place < 0:
            outcome = UNKNOWN_ORDER
        else:
            slot = state.ids[place, 1]
            had = orders[slot]["lots"]
            if kind == CANCEL:
                withdrawn = had
                remove(state, slot)
            elif price == orders[slot]["price"] and wanted <= had:
                resting, withdrawn = wanted, had - wanted
                reduce(state, slot, withdrawn)
            else:
                owner, side = orders[slot]["owner"], state.levels[orders[slot]["level"]]["side"]
                enters = order_type != POST_ONLY or not _crosses(state, side, key_of(side, price))
                if enters:
                    remove(state, slot)
                else:
                    outcome, resting = WOULD_CROSS, had
        if enters:
            outcome, filled, resting = _submit(
                state, tape, order_id, owner, side, order_type, price, wanted, first_row + row
            )
            if outcome in (EXPIRED, SELF_TRADE):
                withdrawn = wanted - filled
        results[row]["outcome"], results[row]["filled"] = outcome, filled
        results[row]["resting"], results[row]["withdrawn"] = resting, withdrawn


@compiled
def _shrink_market(state: BookState, side: int, prices: FloatArray, lots: IndexArray) -> None:
    """Cut the market's size at each price to the new one, from the back of the queue."""
    new = 0
    for position in range(state.counters[NUM_LEVELS + side] - 1, -1, -1):
        key = state.keys[side, position]
        while new < prices.shape[0] and key_of(side, prices[new]) > key:
            new += 1
        target = lots[new] if new < prices.shape[0] and key_of(side, prices[new]) == key else 0
        level = state.levels[state.queues[side, position]]
        excess = -target
        slot = level["head"]
        while slot >= 0:
            if state.orders[slot]["owner"] == MARKET_OWNER:
                excess += state.orders[slot]["lots"]
            slot = state.orders[slot]["behind"]
        slot = level["tail"]
        while excess > 0:
            ahead = state.orders[slot]["ahead"]
            if state.orders[slot]["owner"] == MARKET_OWNER:
                cut = min(excess, state.orders[slot]["lots"])
                excess -= cut
                reduce(state, slot, cut)
            slot = ahead


@compiled
def _grow_market(state: BookState, tape: Tape, side: int, prices: FloatArray, lots: IndexArray) -> None:
    """Let what the market's size at each price lacks arrive as its limit orders, best price first."""
    keys, counters = state.keys[side], state.counters
    # Constants would compile every function below once more for their value.
    owner, row = int(np.int64(MARKET_OWNER)), int(np.int64(RESEED))
    for new in range(prices.shape[0]):
        key = key_of(side, prices[new])
        missing = lots[new]
        count = counters[NUM_LEVELS + side]
        position = position_of(keys, count, key)
        if position < count and keys[position] == key:
            level = state.queues[side, position]
            tail = state.levels[level]["tail"]
            slot = tail
            while slot >= 0:
                if state.orders[slot]["owner"] == MARKET_OWNER:
                    missing -= state.orders[slot]["lots"]
                slot = state.orders[slot]["ahead"]
            if missing > 0 and state.orders[tail]["owner"] == MARKET_OWNER:
                state.orders[tail]["lots"] += missing
                state.levels[level]["lots"] += missing
                missing = 0
        if missing > 0:
            order_id = counters[NEXT_MARKET_ID]
            counters[NEXT_MARKET_ID] -= 1
            left, _ = _match(state, tape, order_id, owner, side, key, missing, row)
            if left > 0:
                _rest_new(state, order_id, owner, side, prices[new], left)


@compiled
def reseed(
    state: BookState,
    tape: Tape,
    prices: tuple[FloatArray, FloatArray],
    lots: tuple[IndexArray, IndexArray],
) -> None:
    """Turn the market's resting size into that of a new snapshot, bids and asks, around everyone else's orders."""
    for side in range(2):
        _shrink_market(state, side, prices[side], lots[side])
    for side in range(2):
        _grow_market(state, tape, side, prices[side], lots[side])
