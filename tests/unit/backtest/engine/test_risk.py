"""Limits, margin and the kill switch: what is refused, with which reason, and what ends trading."""

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from archetype_dagster.backtest import Order, Target, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine import KillSwitch
from archetype_dagster.settings import MarginSettings

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")


def reasons(result):
    return result.rejections["reason"].to_list()


def test_the_largest_position_counts_resting_orders(engine_on, scripted):
    script = {
        0: [Order(SPOT, "buy", 2.0, 90.0, "limit"), Order(SPOT, "buy", 1.5), Order(SPOT, "buy", 1.0)],
        1: [Order(SPOT, "sell", 3.5), Order(SPOT, "sell", 2.0), Order(SPOT, "sell", 3.0)],
    }
    result = engine_on([100, 100], risk={"max_position": 3.0}).run(scripted(script))
    assert result.fills.select("side", "size").rows() == [("buy", 1.0), ("sell", 3.5)]
    assert reasons(result) == ["max_position"] * 3
    assert result.positions["position"].abs().max() == 2.5


def test_a_legs_own_limit_comes_before_the_common_one(engine_on, scripted):
    engine = engine_on([100], risk={"max_position": 3.0}, leg={"max_position": 1.0})
    assert reasons(engine.run(scripted({0: [Order(SPOT, "buy", 2.0)]}))) == ["max_position"]


def test_the_largest_notional_is_that_of_all_legs(engine_on, scripted, book_bars):
    engine = engine_on([100, 200], risk={"max_notional": 300.0})
    engine.add(SWAP, book_bars([100, 200], tick=1e-12))
    script = {
        0: [Target(SPOT, 2.0), Target(SWAP, -2.0), Target(SWAP, -1.0)],
        1: [Target(SPOT, 2.5), Target(SPOT, 1.0), Target(SWAP, 1.0)],
    }
    result = engine.run(scripted(script))
    held = result.positions["position"].to_list()
    assert held == [2.0, -1.0, 1.0, 1.0]
    assert reasons(result) == ["max_notional", "max_notional"]


def test_initial_margin_bounds_what_is_opened_and_never_what_is_closed(engine_on, scripted):
    margin = {"mode": "cross", "swap_initial_rate": 0.5, "swap_maintenance_rate": 0.01}
    script = {0: [Target(SWAP, 2.1), Target(SWAP, 2.0)], 1: [Target(SWAP, 2.01), Target(SWAP, 1.5)]}
    result = engine_on([100, 80], instrument=SWAP, margin=margin).run(scripted(script))
    assert reasons(result) == ["initial_margin", "initial_margin"]
    assert result.positions["position"].to_list() == [2.0, 1.5]


def test_one_legs_profit_secures_the_other(engine_on, book_bars):
    margin = {"mode": "cross", "swap_maintenance_rate": 0.05, "spot_initial_rate": 0.1, "spot_maintenance_rate": 0.05}
    alone = engine_on([100, 94, 94], instrument=SWAP, margin=margin)
    assert alone.run_targets([10, 10, 10]).fills["cause"].to_list() == ["target", "liquidation"]
    hedged = engine_on([100, 94, 94], instrument=SWAP, cash=200, margin=margin)
    hedged.add(SPOT, book_bars([100, 94, 94], tick=1e-12))
    result = hedged.run_targets({SWAP: [10.0] * 3, SPOT: [-10.0] * 3})
    assert "liquidation" not in result.fills["cause"].to_list()
    assert result.bars["net_value"].to_list() == pytest.approx([200, 200, 200])


def test_a_forced_close_finds_a_price_where_orders_would_not(engine_on, book_bars):
    margin = {"mode": "cross", "liquidation_fee_rate": 0.0}
    bars = book_bars([100, 94, 94], tick=0.01, size=2.0)
    result = engine_on(bars, instrument=SWAP, margin=margin, depth_policy="partial").run_targets([10, 10, 0])
    forced = result.fills.row(1, named=True)
    assert (forced["cause"], forced["position"]) == ("liquidation", 0.0)
    small = engine_on(bars.with_columns(bid1_size=1.0), instrument=SWAP, margin=margin, depth_policy="reject")
    assert small.run_targets([10, 10, 0]).fills["beyond_book"].to_list() == pytest.approx([0, 1])


def test_a_drawdown_closes_everything_and_ends_trading(engine_on, scripted):
    script = {
        0: [Target(SPOT, 1.0), Order(SPOT, "buy", 1.0, 50.0, "limit", "low")],
        3: [Target(SPOT, 1.0), Target(SPOT, 0.0)],
    }
    strategy = scripted(script)
    result = engine_on([100, 120, 107, 130], risk={"max_drawdown": 0.1}).run(strategy)
    assert result.stopped == "max_drawdown"
    assert result.fills["cause"].to_list() == ["target", "stop"]
    assert result.bars["net_value"].to_list() == pytest.approx([100, 120, 107, 107])
    assert result.rejections.select("tag", "reason", "detail").rows() == [
        ("low", "stopped", "withdrawn"),
        ("", "stopped", "max_drawdown"),
    ]
    assert [ctx.stopped for ctx in strategy.contexts] == [None, None, "max_drawdown", "max_drawdown"]
    assert len(strategy.contexts) == 4


@pytest.mark.parametrize("closes", [True, False])
def test_the_kill_switch_of_a_strategy(engine_on, scripted, closes):
    script = {0: [Target(SPOT, 1.0)], 1: [KillSwitch("enough"), Target(SPOT, 2.0)]}
    result = engine_on([100, 110, 120], risk={"close_on_stop": closes}).run(scripted(script))
    assert result.stopped == "enough"
    assert result.positions["position"].to_list() == ([1.0, 0.0, 0.0] if closes else [1.0, 1.0, 1.0])
    assert result.rejections.select("reason", "detail").rows() == [("stopped", "enough")]


def test_a_delayed_kill_switch_outlives_a_gap(engine_on, scripted, book_bars):
    bars = book_bars([100, 110, 120, 130], tick=1e-12).with_columns(segment=pl.Series([0, 0, 1, 1], dtype=pl.Int32))
    script = {0: [Target(SPOT, 1.0)], 1: [KillSwitch("enough"), Target(SPOT, 2.0)]}
    result = engine_on(bars, delay=1).run(scripted(script))
    assert result.stopped == "enough"
    assert result.positions["position"].to_list() == [0.0, 1.0, 0.0, 0.0]
    assert result.rejections["reason"].to_list() == ["gap"]


def test_the_kill_switch_of_the_engine(engine_on):
    engine = engine_on([100, 110, 120])
    with pytest.raises(ValueError, match="no run"):
        engine.kill()
    walk = engine.start()
    walk.step()
    walk.step([Target(SPOT, 1.0)])
    engine.kill("operator")
    assert walk.step([Target(SPOT, 1.0)]).position == 0.0
    assert walk.result().stopped == "operator"


def test_a_kill_from_a_callback_closes_what_the_same_moment_fills_too(engine_on, scripted, bars_of):
    """Two bids fill at once; the switch is thrown on word of the first, and nothing may be left of the second."""
    bars = bars_of([[(99.0, 5.0)], [(79.0, 5.0)]], [[(101.0, 5.0)], [(81.0, 5.0)]])
    engine = engine_on(bars, cash=1e4)
    engine.subscribe(lambda change: engine.kill("alarm"), "per_fill")
    bids = [Order(SPOT, "buy", 1.0, price, "limit") for price in (90.0, 91.0)]
    result = engine.run(scripted({0: bids, 1: [Order(SPOT, "buy", 1.0)]}))
    assert result.stopped == "alarm"
    assert result.positions["position"].to_list() == [0.0, 0.0]
    assert result.fills["cause"].to_list() == ["order", "order", "stop"]
    assert reasons(result) == ["stopped"]


def test_legs_that_move_at_one_time_are_judged_together(engine_on, bars_of, book_frame):
    """A hedge whose two snapshots fall by half at one moment loses nothing and is neither closed nor stopped."""
    high, low = ([[(99.99, 50.0)]], [[(100.01, 50.0)]]), ([[(49.99, 50.0)]], [[(50.01, 50.0)]])
    bars, leg = bars_of(high[0] * 2, high[1] * 2), {"snapshots": book_frame([15], *low)}
    margin = {"mode": "cross", "spot_initial_rate": 0.1, "spot_maintenance_rate": 0.05}
    engine = engine_on(bars, cash=400, leg=leg, margin=margin, risk={"max_drawdown": 0.1})
    engine.add(SWAP, bars, **leg)
    result = engine.run_targets({SPOT: [10.0] * 2, SWAP: [-10.0] * 2})
    assert result.stopped is None
    assert result.fills["cause"].to_list() == ["target", "target"]


def test_answers_to_fills_cannot_go_on_for_ever(engine_on, scripted):
    class Greedy(scripted):
        def on_fill(self, fill, ctx):
            return [Order(SPOT, "buy", 1.0)]

    result = engine_on([100, 100], risk={"max_orders_per_bar": 7}).run(Greedy({0: [Order(SPOT, "buy", 1.0)]}))
    assert result.fills.height == 7
    assert reasons(result) == ["max_orders_per_bar"]


def test_orders_off_the_venues_grid_are_refused(engine_on, scripted):
    grid = spot_instrument("BTC", "USDT", tick_size=0.5, lot_size=0.01)
    script = {0: [Order(grid, "buy", 0.015), Order(grid, "buy", 0.02, 90.3, "limit"), Order(grid, "buy", 0.02)]}
    result = engine_on([100], instrument=grid).run(scripted(script))
    assert reasons(result) == ["off_grid", "off_grid"]
    assert result.fills["size"].to_list() == [0.02]


def test_maintenance_cannot_exceed_initial_margin():
    with pytest.raises(ValidationError, match="swap_maintenance_rate must not exceed swap_initial_rate"):
        MarginSettings(swap_initial_rate=0.1, swap_maintenance_rate=0.2)


def test_the_same_run_twice_is_the_same_to_the_last_bit(engine_on, book_bars):
    rng = np.random.default_rng(1)
    mids, targets = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, 60))), rng.normal(0, 3, 60)
    engine = engine_on(book_bars(mids, size=1.0, tick=0.05), cash=1e4, rate=0.0002)
    first, second = engine.run_targets(targets), engine.run_targets(targets)
    assert first.bars.equals(second.bars)
    assert first.fills.equals(second.fills)
