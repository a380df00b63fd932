"""The order book's rules: types, self-trade, amends and queues, seeding and the market's next snapshot."""

from __future__ import annotations

import numpy as np
import pytest

from archetype_dagster.backtest.engine.book_records import ADD, CANCEL, OPERATION
from archetype_dagster.backtest.engine.order_book import OrderBook, fine_lot_size
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_walk import walk_book


def seeded(**settings: object) -> OrderBook:
    """Bids 99, 98 and asks 101, 102, two units each."""
    two = np.array([2.0, 2.0])
    return OrderBook.from_levels(np.array([99.0, 98.0]), two, np.array([101.0, 102.0]), two, **settings)


def traded(fills: np.ndarray) -> list[tuple[float, float]]:
    return [(row["price"], row["size"]) for row in fills]


def test_a_limit_order_takes_what_it_crosses_at_the_makers_prices_and_rests() -> None:
    book = seeded()
    done = book.submit("buy", 3.0, price=101.5)
    assert traded(done.fills) == [(101.0, 2.0)]
    assert (done.outcome, done.filled, done.resting, done.withdrawn) == ("accepted", 2.0, 1.0, 0.0)
    assert (book.best_bid, book.best_ask) == (101.5, 102.0)
    assert done.fills["maker_owner"].tolist() == [0]
    assert done.fills["aggressor"].tolist() == [0]


def test_a_market_order_walks_every_level_and_lets_the_rest_expire() -> None:
    done = seeded().submit("sell", 5.0, order_type="market")
    assert traded(done.fills) == [(99.0, 2.0), (98.0, 2.0)]
    assert (done.outcome, done.filled, done.withdrawn) == ("expired", 4.0, 1.0)


def test_ioc_takes_within_its_limit_only() -> None:
    book = seeded()
    done = book.submit("buy", 3.0, price=101.0, order_type="ioc")
    assert (done.outcome, done.filled, done.withdrawn, done.resting) == ("expired", 2.0, 1.0, 0.0)
    assert book.best_bid == 99.0


@pytest.mark.parametrize(("size", "outcome", "filled"), [(4.0, "accepted", 4.0), (4.1, "cannot_fill", 0.0)])
def test_fok_fills_whole_or_not_at_all(size: float, outcome: str, filled: float) -> None:
    book = seeded()
    done = book.submit("buy", size, price=102.0, order_type="fok")
    assert (done.outcome, done.filled, len(book)) == (outcome, filled, 2 if filled else 4)


def test_post_only_is_refused_where_it_would_take() -> None:
    book = seeded()
    assert book.submit("buy", 1.0, price=101.0, order_type="post_only").outcome == "would_cross"
    assert book.submit("buy", 1.0, price=100.9, order_type="post_only").resting == 1.0


def test_orders_of_one_price_fill_in_the_order_they_came() -> None:
    book = OrderBook()
    for owner in (1, 2, 3):
        book.submit("sell", 1.0, price=100.0, owner=owner)
    done = book.submit("buy", 2.5, order_type="market", owner=9)
    assert list(zip(done.fills["maker_owner"], done.fills["size"], strict=True)) == [(1, 1.0), (2, 1.0), (3, 0.5)]
    assert book.order(3).size == 0.5


def test_tenths_leave_no_dust() -> None:
    book = OrderBook()
    book.submit("sell", 0.1, price=100.0)
    book.submit("sell", 0.2, price=100.0)
    done = book.submit("buy", 0.3, price=100.0, owner=2)
    assert (done.filled, done.resting, len(book)) == (0.3, 0.0, 0)


@pytest.mark.parametrize(
    ("policy", "outcome", "sizes", "left"),
    [
        ("cancel_resting", "accepted", [1.0, 1.5], [0.5]),
        ("cancel_incoming", "self_trade", [1.0], [1.0, 2.0]),
        ("allow", "accepted", [1.0, 1.0, 0.5], [1.5]),
    ],
)
def test_self_trade_policies(policy: str, outcome: str, sizes: list[float], left: list[float]) -> None:
    book = OrderBook(self_trade=policy)
    for owner, size in ((2, 1.0), (1, 1.0), (3, 2.0)):
        book.submit("sell", size, price=100.0, owner=owner)
    done = book.submit("buy", 2.5, price=100.0, owner=1)
    assert done.outcome == outcome
    assert done.fills["size"].tolist() == sizes
    assert book.snapshot().orders["size"].tolist() == left
    assert done.withdrawn_orders.tolist() == ([2] if policy == "cancel_resting" else [])
    assert done.filled + done.resting + done.withdrawn == 2.5


@pytest.mark.parametrize(
    ("policy", "most"),
    [("cancel_resting", [(101.0, 1.0)]), ("cancel_incoming", []), ("allow", [(100.0, 1.0), (101.0, 1.0)])],
)
def test_fok_counts_only_what_the_self_trade_policy_lets_it_take(policy: str, most: list[tuple[float, float]]) -> None:
    book = OrderBook(self_trade=policy)
    book.submit("sell", 1.0, price=100.0, owner=1)
    book.submit("sell", 1.0, price=101.0, owner=2)
    size = sum(size for _, size in most)
    refused = book.submit("buy", size + 0.1, price=101.0, order_type="fok", owner=1)
    assert (refused.outcome, len(refused.fills), len(book)) == ("cannot_fill", 0, 2)
    if most:
        assert traded(book.submit("buy", size, price=101.0, order_type="fok", owner=1).fills) == most


def test_the_market_at_large_may_trade_with_itself() -> None:
    assert seeded(self_trade="cancel_incoming").submit("buy", 1.0, order_type="market", owner=0).filled == 1.0


def test_a_smaller_size_keeps_the_place_in_the_queue_and_anything_else_loses_it() -> None:
    book = OrderBook()
    for _ in range(3):
        book.submit("buy", 1.0, price=100.0)
    assert book.amend(1, price=100.0, size=0.4).withdrawn == 0.6
    assert book.order(2)[-2:] == (1, 0.4)
    book.amend(1, price=100.0, size=0.5)
    assert book.snapshot().orders["order_id"].tolist() == [2, 3, 1]
    book.amend(2, price=99.0, size=1.0)
    book.amend(2, price=100.0, size=1.0)
    assert book.order(2)[-2:] == (2, 1.5)


def test_an_amend_into_the_other_side_trades_unless_it_is_post_only() -> None:
    book = seeded()
    own = book.submit("buy", 1.0, price=100.0).order_id
    refused = book.amend(own, price=101.0, size=3.0, post_only=True)
    assert (refused.outcome, refused.resting, book.order(own).price) == ("would_cross", 1.0, 100.0)
    done = book.amend(own, price=101.0, size=3.0)
    assert (done.filled, done.resting) == (2.0, 1.0)


def test_cancels_and_ids() -> None:
    book = seeded()
    own = book.submit("buy", 1.0, price=100.0, order_id=7)
    assert (own.order_id, book.next_order_id, 7 in book) == (7, 8, True)
    assert book.submit("buy", 1.0, price=100.0, order_id=7).outcome == "duplicate_id"
    assert book.cancel(7).withdrawn == 1.0
    assert book.cancel(7).outcome == "unknown_order"
    assert book.amend(7, price=1.0, size=1.0).outcome == "unknown_order"


def test_a_batch_says_what_is_wrong_with_which_operation_and_changes_nothing() -> None:
    book = seeded()
    rows = np.zeros(3, OPERATION)
    rows["kind"], rows["order_id"], rows["price"], rows["size"] = ADD, [1, 2, 3], 100.0, 1.0
    for field, value, rule in (
        ("size", np.nan, "size must be positive and finite, got size=nan"),
        ("size", 1e-9 / 3, "at least half a lot|whole lots"),
        ("size", 1e12, "2\\^53 lots"),
        ("price", -1.0, "price must be positive"),
        ("price", np.inf, "price must be positive"),
        ("side", 2, "side must be 0"),
        ("type", 5, "type must be 0 to 4"),
        ("kind", 3, "kind must be"),
        ("owner", -1, "owner must not"),
        ("order_id", 0, "order_id must be positive"),
    ):
        faulty = rows.copy()
        faulty[field][1] = value
        with pytest.raises(ValueError, match=rf"operation 1: .*({rule})"):
            book.apply(faulty)
    assert len(book) == 4
    rows["kind"] = CANCEL
    assert len(book.apply(rows).fills) == 0
    assert len(book.apply(rows[:0]).results) == 0


def test_wrong_arguments_are_refused_by_name() -> None:
    book = OrderBook()
    for call, rule in (
        (lambda: OrderBook(lot_size=float("nan")), "lot_size"),
        (lambda: OrderBook(off_lot="drop"), "off_lot"),
        (lambda: OrderBook(self_trade="none"), "self_trade"),
        (lambda: book.submit("long", 1.0, price=1.0), "side"),
        (lambda: book.submit("buy", 1.0), "market order has no price"),
        (lambda: book.order(3), "order_id=3"),
        (lambda: book.apply(np.zeros(2)), "OPERATION"),
        (lambda: fine_lot_size(0.0), "largest"),
    ):
        with pytest.raises(ValueError, match=rule):
            call()


def test_more_lots_than_fit_are_refused() -> None:
    book = OrderBook(lot_size=1.0)
    rows = np.zeros(600, OPERATION)
    rows["order_id"], rows["price"], rows["size"] = np.arange(1, 601), 1.0, 2.0**53
    with pytest.raises(ValueError, match="too small"):
        book.apply(rows)


def test_levels_that_no_book_could_show_are_refused_by_name() -> None:
    one = np.array([1.0])
    with pytest.raises(MarketDataError, match="best bid must be below"):
        OrderBook.from_levels(np.array([100.0]), one, np.array([100.0]), one)
    with pytest.raises(MarketDataError, match=r"bid2_price.*strictly worse"):
        OrderBook.from_levels(np.array([99.0, 99.0]), np.ones(2), one, one)
    with pytest.raises(MarketDataError, match=r"ask1_size.*finite"):
        OrderBook.from_levels(one, one, np.array([2.0]), np.array([np.nan]))
    with pytest.raises(MarketDataError, match=r"ask1_size.*whole lots"):
        OrderBook.from_levels(one, one, np.array([2.0]), np.array([1 / 3]))
    nothing = np.array([np.nan])
    assert len(OrderBook.from_levels(nothing, np.zeros(1), nothing, nothing)) == 0


def test_own_orders_keep_their_place_and_the_size_before_them_never_grows() -> None:
    bids, asks, two = np.array([99.0, 98.0]), np.array([101.0, 102.0]), np.array([2.0, 2.0])
    book = seeded()
    own = book.submit("buy", 1.0, price=99.0).order_id
    places = []
    for visible in (5.0, 3.0, 1.5, 4.0, 0.0, 6.0):
        fills = book.replace_market_levels(bids, np.array([visible, 2.0]), asks, two)
        assert len(fills) == 0
        places.append(book.order(own).size_ahead)
        prices, sizes = book.depth("buy")
        assert sizes[prices == 99.0].tolist() == [visible + 1.0]
    assert places == [2.0, 2.0, 1.5, 1.5, 0.0, 0.0]


def test_new_levels_that_reach_an_own_order_fill_it_at_its_price() -> None:
    book = seeded()
    own = book.submit("buy", 3.0, price=100.0).order_id
    lower = (np.array([99.0]), np.array([2.0]), np.array([99.5, 99.8]), np.array([1.0, 1.0]))
    fills = book.replace_market_levels(*lower)
    assert traded(fills) == [(100.0, 1.0), (100.0, 1.0)]
    assert (fills["maker_id"] == own).all()
    assert (fills["taker_id"] < 0).all()
    assert (fills["operation"] == -1).all()
    assert book.order(own).size == 1.0
    assert book.best_ask is None


def test_market_cost_is_the_walk_of_the_cost_tables() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        steps, sizes = rng.random((2, 8)).cumsum(axis=1), rng.gamma(0.5, 20.0, (2, 8))
        book = OrderBook.from_levels(
            100 - steps[0], sizes[0], 100 + steps[1], sizes[1], lot_size=fine_lot_size(1e3), off_lot="round"
        )
        for side, sign, row in (("buy", 1, 1), ("sell", -1, 0)):
            quantity = rng.uniform(0.5, 1.2) * sizes[row].sum()
            for mark, prices in ((None, 100 + sign * steps[row]), (100.0, steps[row])):
                walked, cost = walk_book(prices, sizes[row], quantity), book.market_cost(side, quantity, mark=mark)
                np.testing.assert_allclose(cost.cash, walked.cash, rtol=1e-12)
                np.testing.assert_allclose(cost.unfilled, walked.unfilled, rtol=1e-12, atol=1e-10)


def test_a_market_order_pays_what_market_cost_said() -> None:
    book = seeded()
    expected = book.market_cost("buy", 3.0)
    fills = book.submit("buy", 3.0, order_type="market").fills
    assert (fills["price"] * fills["size"]).sum() == expected.cash == 304.0
