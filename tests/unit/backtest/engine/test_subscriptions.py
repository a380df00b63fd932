"""Subscriptions to book changes: how many come, that they add up, and what an exception in one does."""

from itertools import pairwise

import pytest

from archetype_dagster.backtest import Order, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine import OrderBook, SubscriberError, apply_diff

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
SCRIPT = {
    0: [Order(SPOT, "buy", 1.0), Order(SPOT, "buy", 2.0, 99.0, "limit")],
    2: [Order(SPOT, "sell", 0.5)],
    3: [Order(SPOT, "buy", 1.0, 101.0, "limit")],
}
MIDS = [100.0, 101.0, 98.5, 100.0, 102.0]


@pytest.fixture
def engine(engine_on, book_bars):
    """Five bars whose books move through a resting bid at 99."""
    return engine_on(book_bars(MIDS, size=5.0, tick=0.5), cash=1e4)


def rebuilt(engine, diffs):
    book = OrderBook(lot_size=engine.timeline.legs[0].lot_size).snapshot()
    for change in diffs:
        book = apply_diff(book, change)
    return book


def test_one_diff_a_bar_and_one_a_fill_and_all_of_them_add_up(engine, scripted):
    got = {kind: [] for kind in ("per_bar", "per_fill", "both")}
    for kind, diffs in got.items():
        engine.subscribe(diffs.append, kind)
    result = engine.run(scripted(SCRIPT))
    assert result.fills.height >= 4
    assert len(got["per_bar"]) == result.bars.height
    assert len(got["per_fill"]) == result.fills.height
    assert len(got["both"]) == result.bars.height + result.fills.height
    for kind in ("per_bar", "both"):
        assert rebuilt(engine, got[kind]).equals(engine.snapshot())
    assert [change.timestamp for change in got["per_bar"]] == result.bars["timestamp"].to_list()


def test_both_tells_nothing_twice(engine, scripted):
    """An order that comes or leaves does so in one of its diffs only."""
    diffs = []
    engine.subscribe(diffs.append, "both")
    engine.run(scripted(SCRIPT))
    for name in ("added", "removed"):
        numbers = [number for change in diffs for number in getattr(change, name)["order_id"].tolist()]
        assert len(numbers) == len(set(numbers)) > 5


def test_the_books_after_each_bar_are_those_of_the_diffs(engine, scripted):
    diffs, live = [], []

    def compare(change):
        diffs.append(change)
        live.append(engine.snapshot())
        assert rebuilt(engine, diffs).equals(live[-1])

    engine.subscribe(compare)
    walk = engine.start()
    walk.step()
    for number in range(len(MIDS)):
        walk.step(SCRIPT.get(number, []))
        assert len(diffs) == number + 1
    assert not any(one.equals(other) for one, other in pairwise(live))


def test_who_leaves_is_told_no_more_and_who_comes_late_starts_from_the_book_of_then(engine, scripted):
    early, late = [], []
    number = engine.subscribe(early.append)

    def change(ctx):
        if ctx.bar_number == 2:
            engine.unsubscribe(number)
            late.append(engine.snapshot())
            engine.subscribe(late.append)
        return SCRIPT.get(ctx.bar_number, [])

    engine.run(scripted(dict.fromkeys(range(5), change)))
    assert len(early) == 2
    book, *changes = late
    for one in changes:
        book = apply_diff(book, one)
    assert len(changes) == 3
    assert book.equals(engine.snapshot())
    with pytest.raises(ValueError, match="no subscription 1"):
        engine.unsubscribe(number)


def test_each_leg_has_diffs_of_its_own(engine, scripted, book_bars):
    engine.add(SWAP, book_bars(MIDS, size=5.0, tick=0.5))
    diffs = []
    engine.subscribe(diffs.append)
    engine.run(scripted())
    assert [change.instrument for change in diffs] == [SPOT, SWAP] * 5


def test_an_exception_names_its_subscriber_and_stops_the_run(engine, scripted):
    def broken(change):
        raise KeyError("lost")

    engine.subscribe(broken, name="risk monitor")
    with pytest.raises(SubscriberError, match="'risk monitor' raised KeyError: 'lost'") as caught:
        engine.run(scripted(SCRIPT))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_is_recorded_where_the_policy_is_to_go_on(engine_on, scripted):
    def broken(change):
        raise KeyError("lost")

    engine, told = engine_on(MIDS, callback_errors="continue"), []
    engine.subscribe(broken)
    engine.subscribe(told.append)
    result = engine.run(scripted())
    assert len(told) == 5
    assert result.subscriber_errors.height == 5
    assert "broken" in result.subscriber_errors["subscriber"][0]
    assert result.subscriber_errors["error"][0] == "KeyError: 'lost'"


def test_an_interrupt_is_no_subscribers_fault(engine_on, scripted):
    def interrupted(change):
        raise KeyboardInterrupt

    engine = engine_on(MIDS, callback_errors="continue")
    engine.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(scripted())


def test_what_cannot_be_subscribed_is_refused(engine):
    with pytest.raises(ValueError, match="kind must be one of"):
        engine.subscribe(print, "sometimes")
    with pytest.raises(ValueError, match="callable"):
        engine.subscribe(None)
