"""Snapshots of an order book, and what changed between two of them, order by order.

A resting order's place follows from its side, its price and its arrival number (`sequence`), so a change of
queue position alone, because somebody ahead left, is no change of the order: a diff names what was added,
removed or modified, and the places of all follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.backtest.engine.book_records import BUY, RESTING, SIDES, RecordArray
from archetype_dagster.backtest.engine.instruments import Instrument, whole_inverse
from archetype_dagster.types import BoolArray, FloatArray, IndexArray

_STORED: Final = ("order_id", "owner", "price", "lots", "sequence", "side")


class BookCounters(NamedTuple):
    """The next numbers that a book gives out: arrival, id of an order, id of a seeded level (negative)."""

    sequence: int
    order_id: int
    market_id: int


@dataclass(frozen=True, eq=False)
class BookSnapshot:
    """Every resting order of a book, exact.

    Attributes:
        orders: RESTING (n,): bids, then asks, best price first, each queue from its front.
        counters: the next numbers.
        lot_size: base units of one lot.
    """

    orders: RecordArray
    counters: BookCounters
    lot_size: float

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The snapshot as plain arrays by name, for `np.savez` or, through `tolist`, for JSON."""
        named = {name: self.orders[name].copy() for name in _STORED}
        return named | {"counters": np.array(self.counters, np.int64), "lot_size": np.array(self.lot_size)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> BookSnapshot:
        """The snapshot whose `arrays` these are, bit by bit.

        Raises:
            ValueError: an array is missing or of another length than the others.
        """
        missing = [name for name in (*_STORED, "counters", "lot_size") if name not in arrays]
        if missing:
            raise ValueError(f"a snapshot needs the arrays {', '.join(missing)}")
        columns = {name: np.asarray(arrays[name], RESTING[name]) for name in _STORED}
        if len({column.shape for column in columns.values()}) > 1:
            shapes = {name: column.shape for name, column in columns.items()}
            raise ValueError(f"a snapshot's arrays must have one length, got {shapes}")
        orders = np.zeros(len(columns["order_id"]), RESTING)
        for name, column in columns.items():
            orders[name] = column
        sequence, order_id, market_id = (int(number) for number in np.asarray(arrays["counters"]))
        return arranged(orders, BookCounters(sequence, order_id, market_id), float(arrays["lot_size"]))

    def equals(self, other: BookSnapshot) -> bool:
        """Whether both hold the same orders in the same places, and would number new ones alike."""
        return (
            self.counters == other.counters
            and self.lot_size == other.lot_size
            and np.array_equal(self.orders, other.orders)
        )


@dataclass(frozen=True, eq=False)
class L3BookDiff:
    """What changed in one instrument's book, order by order; each array is RESTING.

    Attributes:
        instrument: whose book.
        timestamp: when the change was complete.
        added: orders that came, as they rest now.
        removed: orders that left, filled or cancelled, as they last rested.
        modified: orders whose size, price or arrival changed, as they rest now.
        counters: the book's next numbers after the change.
    """

    instrument: Instrument
    timestamp: datetime
    added: RecordArray
    removed: RecordArray
    modified: RecordArray
    counters: BookCounters

    def __len__(self) -> int:
        return len(self.added) + len(self.removed) + len(self.modified)

    def as_dict(self) -> dict[str, Any]:
        """The diff in plain Python values, orders as dictionaries with `side` by name."""
        changes = {name: order_dicts(getattr(self, name)) for name in ("added", "removed", "modified")}
        return {"instrument": self.instrument.symbol, "timestamp": self.timestamp.isoformat(), **changes}


def diff(before: BookSnapshot, after: BookSnapshot, *, instrument: Instrument, timestamp: datetime) -> L3BookDiff:
    """The changes that turn one snapshot into another.

    Raises:
        ValueError: the snapshots count in different lots.
    """
    if before.lot_size != after.lot_size:
        raise ValueError(f"snapshots must share one lot_size, got {before.lot_size} and {after.lot_size}")
    old, new = before.orders, after.orders
    came, left = ~_is_in(new, old), ~_is_in(old, new)
    stayed = np.flatnonzero(~came)
    by_id = np.argsort(old["order_id"])
    earlier = old[by_id[np.searchsorted(old["order_id"], new["order_id"][stayed], sorter=by_id)]]
    changed = np.zeros(len(stayed), np.bool_)
    for name in _STORED:
        changed |= new[name][stayed] != earlier[name]
    return L3BookDiff(instrument, timestamp, new[came], old[left], new[stayed[changed]], after.counters)


def apply_diff(snapshot: BookSnapshot, change: L3BookDiff) -> BookSnapshot:
    """The snapshot after a change, equal to the book's own.

    Raises:
        ValueError: the change removes or modifies an order that is not there, or adds one that is.
    """
    orders = snapshot.orders
    for name, rows, wanted in (
        ("removed", change.removed, True),
        ("modified", change.modified, True),
        ("added", change.added, False),
    ):
        wrong = _is_in(rows, orders) != wanted
        if wrong.any():
            state = "not in the snapshot" if wanted else "in the snapshot already"
            raise ValueError(f"{name} order {rows['order_id'][np.argmax(wrong)]} is {state}")
    gone = _is_in(orders, change.removed) | _is_in(orders, change.modified)
    rows = np.concatenate([orders[~gone], change.modified, change.added])
    return arranged(rows, change.counters, snapshot.lot_size)


def arranged(orders: RecordArray, counters: BookCounters, lot_size: float) -> BookSnapshot:
    """Orders sorted by priority, with the sizes and queue positions that follow from it."""
    by_price = np.where(orders["side"] == BUY, -orders["price"], orders["price"])
    rows = orders[np.lexsort((orders["sequence"], by_price, orders["side"]))]
    rows["size"] = sizes_of(rows["lots"], lot_size)
    place = np.arange(len(rows))
    starts = np.ones(len(rows), np.bool_)
    starts[1:] = (rows["price"][1:] != rows["price"][:-1]) | (rows["side"][1:] != rows["side"][:-1])
    rows["queue_position"] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return BookSnapshot(rows, counters, lot_size)


def sizes_of(lots: IndexArray, lot_size: float) -> FloatArray:
    """Lots as base units, each the float nearest to its decimal number."""
    inverse = whole_inverse(lot_size)
    return np.asarray(lots / inverse if inverse else lots * lot_size, np.float64)


def order_dicts(orders: RecordArray) -> list[dict[str, Any]]:
    """RESTING rows as plain dictionaries, `side` by name."""
    names = [name for name in RESTING.names or () if name not in ("lots", "sequence")]
    columns = [orders[name].tolist() for name in names]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [row | {"side": SIDES[row["side"]]} for row in rows]


def _is_in(rows: RecordArray, others: RecordArray) -> BoolArray:
    return np.isin(rows["order_id"], others["order_id"])
