"""Orders per second through the order book: compiled batches, single orders from Python, and a plain Python book.

Run with `python benchmarks/order_book.py`. Every contender gets the same operations and must trade the same, or
the run stops. The second table times ways of keeping a side's prices, the part that a book's design turns on.
"""

from __future__ import annotations

import argparse
import bisect
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from _machine import machine_line

from archetype_dagster.backtest.engine.book_pool import position_of
from archetype_dagster.backtest.engine.book_records import ADD, BUY, CANCEL, OPERATION, SIDES
from archetype_dagster.backtest.engine.order_book import OrderBook

TICK = 0.01
MIDDLE = 10_000
LOT = 0.001
OWNERS = 50
SLOWER = 10


class PythonBook:
    """Price-time priority in dictionaries, deques and a sorted list of prices: limit orders and cancels only."""

    def __init__(self) -> None:
        self.queues: tuple[dict[float, deque[list[Any]]], ...] = ({}, {})
        self.keys: tuple[list[float], ...] = ([], [])
        self.resting: dict[int, tuple[int, float, list[Any]]] = {}
        self.traded = 0

    def add(self, number: int, side: int, price: float, lots: int) -> None:
        key, other = price if side == BUY else -price, 1 - side
        while lots and self.keys[other] and self.keys[other][-1] >= -key:
            best = self.keys[other][-1]
            queue = self.queues[other][best]
            while lots and queue:
                maker = queue[0]
                taken = min(lots, maker[1])
                lots -= taken
                maker[1] -= taken
                self.traded += taken
                if not maker[1]:
                    queue.popleft()
                    self.resting.pop(maker[0], None)
            if not queue:
                self.keys[other].pop()
                del self.queues[other][best]
        if lots:
            if key not in self.queues[side]:
                self.queues[side][key] = deque()
                bisect.insort(self.keys[side], key)
            entry = [number, lots]
            self.queues[side][key].append(entry)
            self.resting[number] = side, key, entry

    def cancel(self, number: int) -> None:
        if number in self.resting:
            side, key, entry = self.resting.pop(number)
            queue = self.queues[side][key]
            queue.remove(entry)
            if not queue:
                del self.queues[side][key]
                self.keys[side].remove(key)


def orders(count: int, first: int, crossing: float, reach: float, rng: np.random.Generator) -> np.ndarray:
    """Limit orders around one middle: `crossing` is the share priced to trade, `reach` how near the rest stay."""
    rows = np.zeros(count, OPERATION)
    rows["order_id"], rows["side"] = np.arange(first, first + count), rng.integers(0, 2, count)
    # Buyers and sellers are different people, so that no self-trade rule comes in.
    rows["owner"] = 1 + 2 * rng.integers(0, OWNERS, count) + rows["side"]
    away = np.where(rng.random(count) < crossing, -5, rng.geometric(reach, count))
    rows["price"] = (MIDDLE - away * (1 - 2 * rows["side"])) * TICK
    rows["size"] = rng.integers(1, 100, count) * LOT
    return rows


def cancels(numbers: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(numbers), OPERATION)
    rows["kind"], rows["order_id"] = CANCEL, numbers
    return rows


def flows(count: int, lag: int, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By name, the operations that fill the book first and the ones that are timed."""
    seeds = orders(lag, 1, 0.0, 0.05, rng)
    adds = orders(count, lag + 1, 0.0, 0.05, rng)
    mixed = np.zeros(2 * count, OPERATION)
    mixed[::2] = orders(count, lag + 1, 0.3, 0.05, rng)
    mixed[1::2] = cancels(mixed["order_id"][::2] - lag)
    return {
        "submissions that rest": (seeds, adds),
        "cancels, in random order": (np.concatenate([seeds, adds]), cancels(rng.permutation(adds["order_id"]))),
        "mixed: add, cancel, 3 in 10 cross": (seeds, mixed),
    }


def by_batch(rows: np.ndarray, book: OrderBook) -> None:
    book.apply(rows)


def by_order(rows: np.ndarray, book: OrderBook) -> None:
    for number, owner, price, size, kind, side, _ in rows.tolist():
        if kind == ADD:
            book.submit(SIDES[side], size, price=price, owner=owner, order_id=number)
        else:
            book.cancel(number)


def by_python(rows: np.ndarray, book: PythonBook) -> None:
    for number, _, price, size, kind, side, _ in rows.tolist():
        if kind == ADD:
            book.add(number, side, price, round(size / LOT))
        else:
            book.cancel(number)


def seconds_of(work: Callable[..., None], make: Callable[[], Any], first: np.ndarray, rows: np.ndarray) -> Any:
    """The shortest of three runs on fresh books, and the last book."""
    best = np.inf
    for _ in range(3):
        book = make()
        work(first, book)
        begin = time.perf_counter()
        work(rows, book)
        best = min(best, time.perf_counter() - begin)
    return best, book


def resting(book: OrderBook | PythonBook) -> list[tuple[int, int]]:
    if isinstance(book, PythonBook):
        return sorted((number, entry[1]) for number, (_, _, entry) in book.resting.items())
    rows = book.snapshot().orders
    return sorted(zip(rows["order_id"].tolist(), rows["lots"].tolist(), strict=True))


@numba.njit
def sorted_prices(adds: Any, ticks: Any, keys: Any, counts: Any) -> float:
    levels, check = 0, 0.0
    for i in range(len(adds)):
        key = ticks[i] * TICK
        place = position_of(keys, levels, key)
        if adds[i]:
            if place < levels and keys[place] == key:
                counts[place] += 1
            else:
                for k in range(levels, place, -1):
                    keys[k], counts[k] = keys[k - 1], counts[k - 1]
                keys[place], counts[place] = key, 1
                levels += 1
        else:
            counts[place] -= 1
            if counts[place] == 0:
                for k in range(place, levels - 1):
                    keys[k], counts[k] = keys[k + 1], counts[k + 1]
                levels -= 1
        check += keys[levels - 1] if levels else 0.0
    return check


@numba.njit
def dense_ticks(adds: Any, ticks: Any, keys: Any, counts: Any) -> float:
    best, check = -1, 0.0
    for i in range(len(adds)):
        tick = int(np.rint(ticks[i] * TICK / TICK))
        counts[tick] += 1 if adds[i] else -1
        if adds[i]:
            best = max(best, tick)
        while best >= 0 and counts[best] == 0:
            best -= 1
        check += best * TICK if best >= 0 else 0.0
    return check


CONTENDERS: dict[str, tuple[Callable[..., None], Callable[[], Any]]] = {
    "compiled, one batch": (by_batch, lambda: OrderBook(lot_size=LOT)),
    "compiled, order by order": (by_order, lambda: OrderBook(lot_size=LOT)),
    "plain Python book": (by_python, PythonBook),
}


def time_flows(names: list[str], count: int, lag: int, seed: int) -> None:
    """A row for every flow of `count` orders and contender; all must leave the same orders."""
    for flow, (first, rows) in flows(count, lag, np.random.default_rng(seed)).items():
        left = []
        for name in names:
            seconds, book = seconds_of(*CONTENDERS[name], first, rows)
            rate = f"{len(rows) / seconds:12,.0f} operations/s {1e9 * seconds / len(rows):9,.0f} ns"
            print(f"{len(rows):8} {flow:36} {name:26} {rate}")
            left.append(resting(book))
            if left[-1] != left[0]:
                raise SystemExit(f"{name} does not leave the orders that {names[0]} left")


def time_levels(count: int, reach: float, lag: int, seed: int) -> None:
    """A row for each way of keeping prices: orders come `reach` from the best and leave `lag` orders later."""
    ticks = np.repeat(MIDDLE - np.random.default_rng(seed).geometric(reach, count).clip(max=MIDDLE - 1), 2)
    ticks[1::2] = np.roll(ticks[1::2], lag)
    adds = np.tile([True, False], count)
    # What would leave before it came does not leave.
    kept = (np.arange(2 * count) % 2 == 0) | (np.arange(2 * count) >= 2 * lag)
    ticks, adds = ticks[kept], adds[kept]
    checks = set()
    for name, keep in (("sorted array", sorted_prices), ("array by tick", dense_ticks)):
        keep(adds[:2], ticks[:2], np.zeros(MIDDLE), np.zeros(MIDDLE, np.int64))
        counts = np.zeros(MIDDLE, np.int64)
        begin = time.perf_counter()
        checks.add(round(keep(adds, ticks, np.zeros(MIDDLE), counts), 3))
        seconds = time.perf_counter() - begin
        print(f"{len(np.unique(ticks[-2 * lag :])):8} prices {name:26} {1e9 * seconds / len(adds):9,.1f} ns")
    if len(checks) > 1:
        raise SystemExit("the two ways do not agree on the best prices")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--resting", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine_line("numba", "numpy"))
    print(f"{options.resting} orders rest before the timed ones, seed {options.seed}")
    by_order(orders(10, 1, 0.3, 0.05, np.random.default_rng(0)), OrderBook(lot_size=LOT))
    time_flows(list(CONTENDERS)[:1], options.orders, options.resting, options.seed)
    time_flows(list(CONTENDERS), options.orders // SLOWER, options.resting, options.seed)
    print("keeping one side's prices")
    for reach, lag in ((0.3, 200), (0.05, 2_000), (0.005, 5_000)):
        time_levels(options.orders, reach, lag, options.seed)


if __name__ == "__main__":
    main()
