"""The compiled book against a slow, obvious one: 100,000 random operations, snapshots and diffs on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pytest

from archetype_dagster.backtest.engine.book_diff import apply_diff, diff
from archetype_dagster.backtest.engine.book_records import (
    ADD,
    AMEND,
    CANCEL,
    OPERATION,
    ORDER_TYPES,
    OUTCOMES,
    SELF_TRADE_POLICIES,
)
from archetype_dagster.backtest.engine.instruments import spot_instrument
from archetype_dagster.backtest.engine.order_book import OrderBook

LOT = 0.001
OPERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class Order:
    number: int
    owner: int
    side: int
    price: float
    lots: int
    arrival: int


@dataclass
class ReferenceBook:
    """A list of orders, sorted whenever somebody asks."""

    policy: str
    orders: list[Order] = field(default_factory=list)
    fills: list[tuple[int, int, float, int, int]] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    arrivals: int = 0

    def side(self, side: int, limit: float | None = None) -> list[Order]:
        """Orders of a side by priority, those at the limit or better."""
        sign = -1 if side == 0 else 1
        found = [o for o in self.orders if o.side == side and (limit is None or sign * o.price <= sign * limit)]
        return sorted(found, key=lambda o: (sign * o.price, o.arrival))

    def enter(self, number: int, owner: int, side: int, kind: str, price: float, lots: int) -> tuple[str, int, int]:
        facing = self.side(1 - side, None if kind == "market" else price)
        if kind == "post_only" and facing:
            return "would_cross", 0, 0
        if kind == "fok":
            available = 0
            for maker in facing:
                if maker.owner == owner and owner != 0 and self.policy != "allow":
                    if self.policy == "cancel_incoming":
                        break
                    continue
                available += maker.lots
            if available < lots:
                return "cannot_fill", 0, 0
        left = lots
        for maker in facing:
            if left == 0:
                break
            if maker.owner == owner and owner != 0 and self.policy == "cancel_incoming":
                return "self_trade", lots - left, 0
            self.orders.remove(maker)
            if maker.owner == owner and owner != 0 and self.policy == "cancel_resting":
                self.withdrawn.append(maker.number)
                continue
            taken = min(left, maker.lots)
            self.fills.append((maker.number, number, maker.price, taken, side))
            left -= taken
            if taken < maker.lots:
                self.orders.append(replace(maker, lots=maker.lots - taken))
        if left and kind in ("market", "ioc"):
            return "expired", lots - left, 0
        if left:
            self.orders.append(Order(number, owner, side, price, left, self.arrivals))
            self.arrivals += 1
        return "accepted", lots - left, left

    def do(self, row: np.void) -> tuple[str, int, int, int]:
        number, lots, kind = int(row["order_id"]), round(row["size"] / LOT), ORDER_TYPES[row["type"]]
        resting = next((o for o in self.orders if o.number == number), None)
        if row["kind"] == ADD:
            if resting:
                return "duplicate_id", 0, 0, 0
            owner, side = int(row["owner"]), int(row["side"])
        elif resting is None:
            return "unknown_order", 0, 0, 0
        elif row["kind"] == CANCEL:
            self.orders.remove(resting)
            return "accepted", 0, 0, resting.lots
        elif row["price"] == resting.price and lots <= resting.lots:
            self.orders[self.orders.index(resting)] = replace(resting, lots=lots)
            return "accepted", 0, lots, resting.lots - lots
        else:
            owner, side = resting.owner, resting.side
            if kind == "post_only" and self.side(1 - side, float(row["price"])):
                return "would_cross", 0, resting.lots, 0
            self.orders.remove(resting)
        outcome, filled, rests = self.enter(number, owner, side, kind, float(row["price"]), lots)
        return outcome, filled, rests, lots - filled if outcome in ("expired", "self_trade") else 0

    def resting(self) -> list[tuple[int, int, int, float, int, int]]:
        return [(o.number, o.owner, o.side, o.price, o.lots, o.arrival) for side in (0, 1) for o in self.side(side)]


def random_operations(rng: np.random.Generator) -> np.ndarray:
    """A book of some forty orders at a dozen prices a side, with every operation, type, owner and failure."""
    rows = np.zeros(OPERATIONS, OPERATION)
    numbers = np.arange(1, OPERATIONS + 1)
    earlier = np.maximum(numbers - rng.integers(0, 60, OPERATIONS), 1)
    rows["kind"] = rng.choice([ADD, CANCEL, AMEND], OPERATIONS, p=[0.55, 0.27, 0.18])
    rows["order_id"] = np.where((rows["kind"] == ADD) & (rng.random(OPERATIONS) < 0.98), numbers, earlier)
    rows["owner"] = rng.integers(0, 5, OPERATIONS)
    rows["side"] = rng.integers(0, 2, OPERATIONS)
    kinds = rng.choice(5, OPERATIONS, p=[0.7, 0.06, 0.08, 0.08, 0.08])
    rows["type"] = np.where(rows["kind"] == ADD, kinds, np.where(kinds == 4, 4, 0))
    away = rng.geometric(0.25, OPERATIONS) - 3
    rows["price"] = (1000 - (1 - 2 * rows["side"]) * away) * 0.1
    rows["size"] = rng.integers(1, 40, OPERATIONS) * LOT
    return rows


@pytest.mark.parametrize("seed", range(10))
def test_it_equals_a_slow_and_obvious_book(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = SELF_TRADE_POLICIES[seed % 3]
    book, slow = OrderBook(lot_size=LOT, self_trade=policy), ReferenceBook(policy)
    rows = random_operations(rng)
    told = book.snapshot()
    seen: set[str] = set()
    for start in range(0, OPERATIONS, 100):
        part = rows[start : start + 100]
        slow.fills, slow.withdrawn = [], []
        resting_before = sum(order.lots for order in slow.orders)
        expected = [slow.do(row) for row in part]
        batch = book.apply(part)
        outcomes = [OUTCOMES[code] for code in batch.results["outcome"]]
        fields = (batch.results[name].tolist() for name in ("filled", "resting", "withdrawn"))
        assert list(zip(outcomes, *fields, strict=True)) == expected
        names = ("maker_id", "taker_id", "price", "lots", "aggressor")
        assert list(zip(*(batch.fills[name].tolist() for name in names), strict=True)) == slow.fills
        assert batch.withdrawn.tolist() == slow.withdrawn
        now = book.snapshot()
        names = ("order_id", "owner", "side", "price", "lots", "sequence")
        assert list(zip(*(now.orders[name].tolist() for name in names), strict=True)) == slow.resting()
        assert (now.orders["lots"] > 0).all()
        assert book.best_bid is None or book.best_ask is None or book.best_bid < book.best_ask
        change = diff(told, now, instrument=spot_instrument("BTC", "USDT"), timestamp=datetime(2024, 1, 1, tzinfo=UTC))
        told = apply_diff(told, change)
        assert told.equals(now)
        assert resting_before > 0 or start == 0
        seen.update(outcomes)
    assert seen >= {"accepted", "expired", "would_cross", "cannot_fill", "duplicate_id", "unknown_order"}
    assert ("self_trade" in seen) == (policy == "cancel_incoming")


def test_every_lot_is_accounted_for() -> None:
    rows = random_operations(np.random.default_rng(77))
    rows["kind"][rows["kind"] == AMEND] = CANCEL
    book = OrderBook(lot_size=LOT)
    batch = book.apply(rows)
    results = batch.results
    taken_in = (rows["kind"] == ADD) & (results["outcome"] <= OUTCOMES.index("self_trade"))
    came = np.rint(rows["size"][taken_in] / LOT).astype(np.int64)
    parts = results[taken_in]
    np.testing.assert_array_equal(parts["filled"] + parts["resting"] + parts["withdrawn"], came)
    cancelled = results["withdrawn"][rows["kind"] == CANCEL].sum()
    traded = batch.fills["lots"].sum()
    resting = book.snapshot().orders["lots"].sum()
    expired = parts["withdrawn"].sum()
    # What the self-trade policy withdrew is known by id only: it is what the sum lacks, and there is some.
    lost = came.sum() - 2 * traded - cancelled - resting - expired
    assert traded == parts["filled"].sum()
    assert lost > 0
    assert len(batch.withdrawn) > 0
    free = OrderBook(lot_size=LOT, self_trade="allow")
    batch = free.apply(rows)
    taken_in = (rows["kind"] == ADD) & (batch.results["outcome"] <= OUTCOMES.index("self_trade"))
    came = np.rint(rows["size"][taken_in] / LOT).astype(np.int64).sum()
    gone = batch.results["withdrawn"].sum() + 2 * batch.fills["lots"].sum()
    assert came == gone + free.snapshot().orders["lots"].sum()


def test_large_batches_and_single_operations_give_the_same_book() -> None:
    rows = random_operations(np.random.default_rng(3))
    rows = np.concatenate([rows, rows])
    whole, split = OrderBook(lot_size=LOT), OrderBook(lot_size=LOT)
    fills = whole.apply(rows).fills
    parts = [split.apply(rows[start : start + 3000]) for start in range(0, len(rows), 3000)]
    assert whole.snapshot().equals(split.snapshot())
    assert (fills["operation"][1:] >= fills["operation"][:-1]).all()
    assert len(fills) == sum(len(part.fills) for part in parts)


def test_a_deep_book_grows_and_empties() -> None:
    count = 20_000
    rng = np.random.default_rng(9)
    rows = np.zeros(count, OPERATION)
    rows["order_id"], rows["owner"] = rng.permutation(count) + 1, 1
    rows["price"], rows["size"] = rng.integers(1, 3000, count) * 0.01, LOT
    book = OrderBook(lot_size=LOT)
    book.apply(rows)
    prices, sizes = book.depth("buy")
    assert len(book) == count
    assert (np.diff(prices) < 0).all()
    np.testing.assert_allclose(sizes.sum(), count * LOT, rtol=1e-12)
    rows["kind"], rows["order_id"] = CANCEL, rng.permutation(count) + 1
    assert (book.apply(rows).results["withdrawn"] == 1).all()
    assert len(book) == 0
    assert book.best_bid is None
