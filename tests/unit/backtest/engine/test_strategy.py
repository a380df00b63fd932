"""Strategies: when they are called, what they see, and that no later row can be reached from it."""

import gc
import types
from weakref import ref

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BaseStrategy, Order, Target, spot_instrument, swap_instrument
from archetype_dagster.errors import MarketDataError

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
SENTINEL = 987_654.25


class Watcher(BaseStrategy):
    def __init__(self):
        self.calls = []

    def on_start(self, ctx):
        self.calls.append(("start", ctx.time, ctx.history().height))

    def on_bar(self, bar, ctx):
        self.calls.append(("bar", bar.close, ctx.history().height))
        return [Order(SPOT, "buy", 1.0)] if ctx.bar_number == 0 else None

    def on_fill(self, fill, ctx):
        self.calls.append(("fill", fill.size, ctx.position))
        return [Order(SPOT, "sell", 0.25)] if fill.side == "buy" else None

    def on_book_diff(self, diff, ctx):
        self.calls.append(("diff", diff.timestamp == ctx.time, len(diff) > 0))

    def on_stop(self, ctx):
        self.calls.append(("stop", ctx.position, ctx.net_value))


def test_every_hook_is_called_in_its_place_and_its_orders_are_executed(engine_on):
    engine, strategy = engine_on([100, 110, 120]), Watcher()
    result = engine.run(strategy)
    assert strategy.calls == [
        ("start", None, 0),
        ("bar", 100.0, 1),
        ("fill", 1.0, 1.0),
        ("fill", 0.25, 0.75),
        ("diff", True, True),
        ("bar", 110.0, 2),
        ("diff", True, True),
        ("bar", 120.0, 3),
        ("diff", True, True),
        ("stop", 0.75, pytest.approx(100 + 15)),
    ]
    assert result.positions["position"].to_list() == [0.75] * 3
    engine.run(strategy)
    assert sum(call[0] == "bar" for call in strategy.calls) == 6


def test_a_run_that_is_over_and_forgotten_keeps_nothing_in_memory(engine_on):
    """Without the garbage collector, which rarely comes by for a few large arrays."""
    engine, strategy = engine_on([100, 110, 120]), Watcher()
    gc.disable()
    try:
        engine.run(strategy)
        simulation, timeline = ref(engine._simulation), ref(engine.timeline)
        del engine
        assert (simulation(), timeline()) == (None, None)
    finally:
        gc.enable()


def test_a_strategy_must_decide_on_bars():
    class Idle(BaseStrategy):
        pass

    with pytest.raises(TypeError, match="on_bar"):
        Idle()


@pytest.mark.parametrize(
    ("given", "rule"), [([1.0], "orders, targets"), ([Order(SWAP, "buy", 1.0)], "BTC-USDT-SWAP is no leg")]
)
def test_what_is_no_instruction_is_refused(engine_on, scripted, given, rule):
    with pytest.raises(ValueError, match=rule):
        engine_on([100, 100]).run(scripted({0: given}))


@pytest.mark.parametrize("number", [0.0, -1.0, np.nan, np.inf])
def test_orders_of_impossible_numbers_are_refused(number):
    with pytest.raises(ValueError, match="size"):
        Order(SPOT, "buy", number)
    with pytest.raises(ValueError, match="price"):
        Order(SPOT, "buy", 1.0, number, "limit")


def test_a_target_must_be_finite_and_a_market_order_has_no_price():
    with pytest.raises(ValueError, match="position"):
        Target(SPOT, np.nan)
    with pytest.raises(ValueError, match="no price"):
        Order(SPOT, "buy", 1.0, 100.0)


def test_history_ends_now_and_a_kept_context_stays_at_its_time(engine_on, scripted):
    strategy = scripted()
    engine_on([100, 101, 102, 103]).run(strategy)
    for number, ctx in enumerate(strategy.contexts):
        frame = ctx.history()
        assert frame["close"].to_list() == [100.0, 101.0, 102.0, 103.0][: number + 1]
        assert frame["timestamp"][-1] == ctx.time
        assert ctx.values("close", 2).tolist() == frame["close"].to_list()[-2:]
        assert ctx.row() == frame.row(-1, named=True)
        assert ctx.marks[SPOT] == pytest.approx(100 + number)
    with pytest.raises(MarketDataError, match="unknown column"):
        strategy.contexts[0].values("future")
    with pytest.raises(ValueError, match="bars must be positive"):
        strategy.contexts[0].history(0)


def test_what_is_seen_cannot_be_changed(engine_on, scripted):
    strategy = scripted()
    engine_on([100, 101]).run(strategy)
    ctx = strategy.contexts[0]
    with pytest.raises(AttributeError):
        ctx.cash = 1e9
    with pytest.raises(ValueError, match="read-only"):
        ctx.values("close")[0] = 1.0
    ctx.positions[SPOT] = 5.0
    assert ctx.position == 0.0


def reachable(root):
    """Every object that references lead to from `root`, code and modules aside."""
    seen, waiting = {}, [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, types.ModuleType | type | types.FunctionType | types.FrameType):
            continue
        seen[id(found)] = found
        waiting.extend(gc.get_referents(found))
        for name in ("base", "obj", "__dict__", "__self__", "__wrapped__"):
            waiting.append(getattr(found, name, None))
        waiting.extend(getattr(found, name, None) for name in getattr(type(found), "__slots__", ()))
    return seen.values()


def knows_the_future(found) -> bool:
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        return bool((np.abs(found - SENTINEL) < 1).any())
    if isinstance(found, pl.DataFrame):
        return any(knows_the_future(column.to_numpy()) for column in found if column.dtype == pl.Float64)
    return isinstance(found, float) and abs(found - SENTINEL) < 1


def test_no_later_row_can_be_reached_from_what_a_strategy_is_given(engine_on, book_bars):
    """Every reference is followed from bar and context, every array searched whole, for a price of the last bar."""
    bars = book_bars([100.0, 101.0, 102.0, SENTINEL], tick=0.01).with_columns(
        volume=pl.Series([1.0, 2.0, 3.0, SENTINEL])
    )
    seen = []

    class Spy(BaseStrategy):
        def on_bar(self, bar, ctx):
            objects = [
                one for given in (bar, ctx, ctx.history(), ctx.values("close"), ctx.book) for one in reachable(given)
            ]
            seen.append((len(objects), any(knows_the_future(one) for one in objects)))
            return [Order(SPOT, "buy", 1.0, 90.0, "limit")]

    engine = engine_on(bars, leg={"snapshots": None})
    engine.run(Spy())
    engine.run(Spy())
    assert all(count > 30 for count, _ in seen)
    assert any(knows_the_future(one) for one in reachable(engine)), "the search finds what can be reached"
    assert [found for _, found in seen] == [False, False, False, True] * 2


def test_later_rows_change_nothing_that_was_decided(engine_on, book_bars):
    class Momentum(BaseStrategy):
        def __init__(self):
            self.made = []

        def on_bar(self, bar, ctx):
            closes = ctx.values("close", 5)
            side = "buy" if closes[-1] > closes.mean() else "sell"
            self.made.append((side, ctx.net_value, ctx.book.best_bid, float(ctx.history(3)["volume"].sum())))
            return [Order(SPOT, side, 0.1)]

    rng = np.random.default_rng(0)
    prices = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, 40)))
    changed = np.concatenate([prices[:25], prices[25:][::-1] * 3])
    runs = []
    for mids in (prices, changed):
        strategy = Momentum()
        engine_on(book_bars(mids), cash=1e4).run(strategy)
        runs.append(strategy.made[:25])
    assert runs[0] == runs[1]


def test_a_run_can_be_walked_step_by_step_from_any_bar(engine_on):
    engine = engine_on([100, 110, 105, 90, 95])
    walk = engine.start(first=1, last=3)
    first = walk.step()
    assert (first.bar_number, first.history().height, first.marks[SPOT]) == (0, 2, pytest.approx(110))
    second = walk.step([Target(SPOT, 2.0)])
    assert second.net_value == pytest.approx(100 + 2 * (105 - 110))
    assert walk.step() is not None
    assert walk.step() is None
    assert walk.is_over
    assert walk.result().bars["net_value"].to_list() == pytest.approx([100, 90, 60])
    with pytest.raises(ValueError, match="first and last"):
        engine.start(first=3, last=9)
    with pytest.raises(ValueError, match="no bar is open"):
        engine.start().step([Target(SPOT, 1.0)])


def test_a_lone_instruction_is_refused(engine_on):
    class Lone(BaseStrategy):
        def on_bar(self, bar, ctx):
            return Target(SPOT, 1.0)

    with pytest.raises(ValueError, match="instructions come in a sequence, got a single Target"):
        engine_on([100, 110]).run(Lone())
