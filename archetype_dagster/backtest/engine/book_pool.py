"""Compiled keeping of resting orders: id table, queues of one price and the sorted prices of each side.

Each side's prices are one sorted array, the best last, where nearly all orders come and go: it takes any price,
on a tick or off it. Nothing is allocated: whoever calls sees to the capacity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from archetype_dagster.backtest.engine.book_records import (
    BUY,
    FREE_LEVEL,
    FREE_ORDER,
    NUM_LEVELS,
    NUM_ORDERS,
    BookState,
    RecordArray,
    empty_state,
)
from archetype_dagster.backtest.engine.compiled import compiled
from archetype_dagster.types import FloatArray, IndexArray

_SPREAD = 0x9E3779B97F4A7C15


@compiled
def _home(order_id: int, mask: int) -> Any:
    mixed = np.uint64(order_id) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(32)) & mask


@compiled
def find(index: IndexArray, order_id: int) -> int:
    """Place of an id in the table, -1 where it is not."""
    mask = index.shape[0] - 1
    place = _home(order_id, mask)
    while index[place, 0] != 0:
        if index[place, 0] == order_id:
            return int(place)
        place = (place + 1) & mask
    return -1


@compiled
def _insert_id(index: IndexArray, order_id: int, slot: int) -> None:
    mask = index.shape[0] - 1
    place = _home(order_id, mask)
    while index[place, 0] != 0:
        place = (place + 1) & mask
    index[place, 0], index[place, 1] = order_id, slot


@compiled
def _delete_id(index: IndexArray, order_id: int) -> None:
    mask = index.shape[0] - 1
    hole = find(index, order_id)
    place = (hole + 1) & mask
    while index[place, 0] != 0:
        # An entry moves into the hole unless its home lies after it.
        if ((place - _home(index[place, 0], mask)) & mask) >= ((place - hole) & mask):
            index[hole, 0], index[hole, 1] = index[place, 0], index[place, 1]
            hole = place
        place = (place + 1) & mask
    index[hole, 0] = 0


@compiled
def key_of(side: int, price: float) -> float:
    """A price as a key that grows towards the better price of its side."""
    return price if side == BUY else -price


@compiled
def position_of(keys: FloatArray, count: int, key: float) -> int:
    """Where a key stands, or would stand, among the first `count` ascending keys."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def rest(state: BookState, order_id: int, owner: int, side: int, price: float, lots: int, sequence: int) -> None:
    """Put an order at the end of the queue of its price."""
    orders, levels, counters = state.orders, state.levels, state.counters
    keys, queues = state.keys[side], state.queues[side]
    count = counters[NUM_LEVELS + side]
    key = key_of(side, price)
    position = position_of(keys, count, key)
    if position < count and keys[position] == key:
        level = queues[position]
    else:
        for place in range(count, position, -1):
            keys[place], queues[place] = keys[place - 1], queues[place - 1]
        level = counters[FREE_LEVEL]
        counters[FREE_LEVEL] = levels[level]["head"]
        keys[position], queues[position] = key, level
        counters[NUM_LEVELS + side] = count + 1
        levels[level]["lots"], levels[level]["head"], levels[level]["tail"] = 0, -1, -1
        levels[level]["side"] = side
    slot = counters[FREE_ORDER]
    counters[FREE_ORDER] = orders[slot]["behind"]
    tail = levels[level]["tail"]
    orders[slot]["order_id"], orders[slot]["owner"], orders[slot]["price"] = order_id, owner, price
    orders[slot]["lots"], orders[slot]["sequence"], orders[slot]["level"] = lots, sequence, level
    orders[slot]["ahead"], orders[slot]["behind"] = tail, -1
    if tail >= 0:
        orders[tail]["behind"] = slot
    else:
        levels[level]["head"] = slot
    levels[level]["tail"] = slot
    levels[level]["lots"] += lots
    counters[NUM_ORDERS] += 1
    _insert_id(state.ids, order_id, slot)


@compiled
def remove(state: BookState, slot: int) -> None:
    """Take an order out of the book, and its price with it if it was the last one there."""
    orders, levels, counters = state.orders, state.levels, state.counters
    level = orders[slot]["level"]
    ahead, behind = orders[slot]["ahead"], orders[slot]["behind"]
    if ahead >= 0:
        orders[ahead]["behind"] = behind
    else:
        levels[level]["head"] = behind
    if behind >= 0:
        orders[behind]["ahead"] = ahead
    else:
        levels[level]["tail"] = ahead
    levels[level]["lots"] -= orders[slot]["lots"]
    if ahead < 0 and behind < 0:
        side = levels[level]["side"]
        keys, queues = state.keys[side], state.queues[side]
        count = counters[NUM_LEVELS + side]
        for place in range(position_of(keys, count, key_of(side, orders[slot]["price"])), count - 1):
            keys[place], queues[place] = keys[place + 1], queues[place + 1]
        counters[NUM_LEVELS + side] = count - 1
        levels[level]["head"] = counters[FREE_LEVEL]
        counters[FREE_LEVEL] = level
    _delete_id(state.ids, orders[slot]["order_id"])
    orders[slot]["behind"] = counters[FREE_ORDER]
    counters[FREE_ORDER] = slot
    counters[NUM_ORDERS] -= 1


@compiled
def reduce(state: BookState, slot: int, lots: int) -> None:
    """Make an order smaller by `lots` where it stands; at nothing it leaves."""
    if lots == state.orders[slot]["lots"]:
        remove(state, slot)
    else:
        state.orders[slot]["lots"] -= lots
        state.levels[state.orders[slot]["level"]]["lots"] -= lots


@compiled
def list_orders(state: BookState, rows: RecordArray) -> None:
    """Write every resting order into RESTING rows: bids, then asks, best price first, each queue in order."""
    row = 0
    for side in range(2):
        for position in range(state.counters[NUM_LEVELS + side] - 1, -1, -1):
            slot = state.levels[state.queues[side, position]]["head"]
            rank = 0
            while slot >= 0:
                order = state.orders[slot]
                rows[row]["order_id"], rows[row]["owner"] = order["order_id"], order["owner"]
                rows[row]["price"], rows[row]["lots"] = order["price"], order["lots"]
                rows[row]["sequence"], rows[row]["side"] = order["sequence"], side
                rows[row]["queue_position"] = rank
                slot = order["behind"]
                rank += 1
                row += 1


@compiled
def _copy_ids(index: IndexArray, larger: IndexArray) -> None:
    """Enter every id of a table into a larger one."""
    for place in range(index.shape[0]):
        if index[place, 0] != 0:
            _insert_id(larger, index[place, 0], index[place, 1])


@compiled
def rest_all(state: BookState, rows: RecordArray) -> None:
    """Put RESTING rows, as `list_orders` wrote them, into an empty book."""
    for row in range(rows.shape[0]):
        order = rows[row]
        order_id, owner, side = order["order_id"], order["owner"], order["side"]
        rest(state, order_id, owner, side, order["price"], order["lots"], order["sequence"])


@compiled
def queue_ahead(state: BookState, slot: int) -> tuple[int, int]:
    """Orders and lots before an order at its price."""
    count, lots = 0, 0
    ahead = state.orders[slot]["ahead"]
    while ahead >= 0:
        count += 1
        lots += state.orders[ahead]["lots"]
        ahead = state.orders[ahead]["ahead"]
    return count, lots


def with_room(state: BookState, capacity: int) -> BookState:
    """The same book with room for more orders: the new slots come before the free ones that were there."""
    larger, old = empty_state(capacity), len(state.orders)
    for new, former in zip(larger[:4], state[:4], strict=True):
        new[..., :old] = former
    larger.counters[:] = state.counters
    for chain, first in ((larger.orders["behind"], FREE_ORDER), (larger.levels["head"], FREE_LEVEL)):
        chain[-1] = state.counters[first]
        larger.counters[first] = old
    _copy_ids(state.ids, larger.ids)
    return larger
