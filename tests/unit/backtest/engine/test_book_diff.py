"""Snapshots and diffs: exact through files, through the book and through one another."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from archetype_dagster.backtest.engine.book_diff import BookSnapshot, L3BookDiff, apply_diff, diff
from archetype_dagster.backtest.engine.instruments import spot_instrument
from archetype_dagster.backtest.engine.order_book import OrderBook

BTC = spot_instrument("BTC", "USDT")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NEXT = (np.array([99.0, 97.0]), np.array([1.5, 1.0]), np.array([100.5, 102.0]), np.array([1.0, 4.0]))


@pytest.fixture
def book() -> OrderBook:
    two = np.array([2.0, 2.0])
    made = OrderBook.from_levels(np.array([99.0, 98.0]), two, np.array([101.0, 102.0]), two)
    for price in (99.0, 99.0, 100.0):
        made.submit("buy", 0.1, price=price)
    return made


def change(before: BookSnapshot, after: BookSnapshot) -> L3BookDiff:
    return diff(before, after, instrument=BTC, timestamp=NOON)


def test_a_snapshot_goes_through_npz_and_json_bit_by_bit(book: OrderBook, tmp_path: Path) -> None:
    told = book.snapshot()
    np.savez(tmp_path / "book.npz", **told.arrays())
    with np.load(tmp_path / "book.npz") as stored:
        assert BookSnapshot.from_arrays(stored).equals(told)
    text = json.dumps({name: array.tolist() for name, array in told.arrays().items()})
    assert BookSnapshot.from_arrays(json.loads(text)).equals(told)


def test_a_restored_book_goes_on_like_the_one_it_came_from(book: OrderBook) -> None:
    twin = OrderBook()
    twin.restore(book.snapshot())
    for each in (book, twin):
        each.submit("sell", 0.25, price=99.0, owner=2)
        each.replace_market_levels(*NEXT)
        each.submit("buy", 1.0, price=98.5)
    assert twin.snapshot().equals(book.snapshot())


def test_what_no_book_could_hold_is_not_restored(book: OrderBook) -> None:
    told, before = book.snapshot(), book.snapshot()
    crossed, repeated, shuffled = (replace(told, orders=told.orders.copy()) for _ in range(3))
    crossed.orders["price"][0] = 101.0
    repeated.orders["order_id"][1] = repeated.orders["order_id"][0]
    shuffled.orders[:] = shuffled.orders[::-1].copy()
    for snapshot, rule in (
        (crossed, "bids below asks"),
        (repeated, "distinct ids"),
        (shuffled, "price-time priority"),
        (replace(told, lot_size=0.5), "lot_size"),
    ):
        with pytest.raises(ValueError, match=rule):
            book.restore(snapshot)
    assert book.snapshot().equals(before)
    with pytest.raises(ValueError, match="needs the arrays"):
        BookSnapshot.from_arrays({})


def test_a_diff_names_what_came_went_and_changed(book: OrderBook) -> None:
    before = book.snapshot()
    book.cancel(1)
    book.amend(2, price=99.0, size=0.05)
    added = book.submit("sell", 0.3, price=101.0).order_id
    found = change(before, book.snapshot())
    assert found.removed["order_id"].tolist() == [1]
    assert found.removed["queue_position"].tolist() == [1]
    assert found.modified["order_id"].tolist() == [2]
    assert found.modified["size"].tolist() == [0.05]
    row = {"order_id": added, "owner": 1, "price": 101.0, "size": 0.3, "queue_position": 1, "side": "sell"}
    assert found.as_dict()["added"] == [row]
    assert found.as_dict()["instrument"] == "BTC-USDT"
    assert len(found) == 3


def test_a_snapshot_and_all_diffs_equal_the_final_book(book: OrderBook) -> None:
    told = book.snapshot()
    for step in range(4):
        before = book.snapshot()
        if step % 2:
            book.submit("sell", 0.15, price=99.0, owner=2)
        else:
            book.replace_market_levels(*NEXT)
        told = apply_diff(told, change(before, book.snapshot()))
    assert told.equals(book.snapshot())
    assert len(change(told, told)) == 0


def test_a_diff_of_another_book_is_refused(book: OrderBook) -> None:
    before = book.snapshot()
    book.cancel(1)
    gone = change(before, book.snapshot())
    with pytest.raises(ValueError, match="removed order 1 is not in the snapshot"):
        apply_diff(book.snapshot(), gone)
    with pytest.raises(ValueError, match="added order 1 is in the snapshot already"):
        apply_diff(before, change(book.snapshot(), before))
    with pytest.raises(ValueError, match="one lot_size"):
        change(before, replace(before, lot_size=1.0))
