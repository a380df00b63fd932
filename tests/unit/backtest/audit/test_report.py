"""An honest ledger passes; one altered at a single bar fails by the rule it breaks, at that bar."""

from __future__ import annotations

import json
from dataclasses import fields
from dataclasses import replace as changed
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.audit import audit
from archetype_dagster.backtest.replay import replay
from archetype_dagster.errors import MarketDataError
from archetype_dagster.settings import ExecutionSettings, PairSettings

TWO = PairSettings(base="X", max_position=2, beta_1=0, liquidity_scale=1, synthetic_price=1, tick_size=0.01)
EXECUTION = ExecutionSettings(commission_rate=0.001, depth_policy="last_level", execution_delay_bars=1)
# Executed one bar later: long at 1, short at 3, nothing over the gap to row 6, short at 7, long at 9, flat at 11.
ACTIONS = np.array([2, 2, 0, 0, 0, 1, 0, 0, 2, 2, 1, 1])


@pytest.fixture
def market(book_bars):
    """Twelve bars, one missing behind row 5, no asks at row 8; three units a side on five levels."""
    mid = np.array([100, 102, 101, 104, 99, 98, 0, 97, 99, 103, 105, 104, 106.0])
    bars = book_bars(np.maximum(mid, 50), size=0.6, tick=1.0)
    segment = pl.Series("segment", [0] * 6 + [1] * 7, dtype=pl.Int32)
    bars = bars.with_columns(segment).filter(pl.Series(mid > 0))
    asks = [name for name in bars.columns if name.startswith("ask")]
    there = pl.int_range(pl.len()) != 8
    return bars.with_columns(pl.when(there).then(pl.col(name)).alias(name) for name in asks)


@pytest.fixture
def ledger(market):
    return replay(ACTIONS, market, pair=TWO, settings=EXECUTION)


def examine(ledger, market, **changes):
    return audit(ledger, market, **{"pair": TWO, "settings": EXECUTION, **changes})


def broken(report):
    """Rules that do not hold, with the first bar of each."""
    return {check.rule: check.row for check in report.checks if not check.passed}


def at(ledger, field, row, value):
    values = getattr(ledger, field).copy()
    values[row] += value
    return changed(ledger, **{field: values})


def with_other_loss(ledger, row, loss):
    """The consistent ledger of someone who lost `loss` more to the book at `row`."""
    later = loss * (np.arange(len(ledger)) >= row)
    altered = at(at(ledger, "slippage", row, loss), "reward", row, -loss)
    return changed(altered, cash=ledger.cash - later, net_value=ledger.net_value - later)


def test_an_honest_ledger_passes(ledger, market):
    assert ledger.position.tolist() == [0, 2, 2, -2, -2, -2, -2, -2, -2, 2, 2, 0]
    report = examine(ledger, market)
    assert report.failures == ()
    assert report.passed
    assert report.trips.height == 3
    assert report.total_return == pytest.approx(ledger.net_value[-1] / ledger.initial_capital - 1, abs=1e-12)
    # The market's own clock is ten minutes, whatever the gap.
    assert report.statistics.turnover_per_year == pytest.approx(
        (ledger.turnover * ledger.mark).sum() / ledger.initial_capital * 52_560 / 12
    )
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["passed"] is True


@pytest.mark.parametrize(
    ("field", "row", "value", "rule"),
    [
        ("timestamps", 4, np.timedelta64(-10, "m"), "bar ends increase"),
        ("timestamps", 4, np.timedelta64(1, "s"), "bars are those of the market, none left out"),
        ("net_value", 2, 1e-5, "net value is cash + position * mark"),
        ("cash", 5, 1e-5, "cash moves by what was traded and paid"),
        ("reward", 4, 1e-5, "reward is position * next move - fee - slippage"),
        ("position", 4, 0.5, "position is -m, 0 or m"),
        ("traded", 8, 2.0, "position moves by what was traded"),
        ("turnover", 3, -1.0, "turnover is at least the net trade"),
        ("fee", 3, 1e-5, "fee is rate * turnover * mark"),
        ("slippage", 1, -9.0, "fee and slippage are not negative"),
        ("net_value", 6, -1e6, "net value is positive until ruin"),
        ("mark", 7, 0.01, "mark is the mid of the book"),
        ("turnover", 6, 2.0, "no trade by an order from before a gap"),
        ("action", 8, -1, "position is what the order asked for"),
        ("position", 10, -4.0, "position is what the order asked for"),
        ("slippage", 3, 50.0, "fills lie inside the book"),
        ("slippage", 5, 1e-5, "fills lie inside the book"),
        ("slippage", 9, -1e-5, "slippage is that of walking the book"),
        ("net_value", 11, 1e-5, "the trips earn the total return"),
    ],
)
def test_an_altered_bar_is_named_by_the_rule_it_breaks(ledger, market, field, row, value, rule):
    report = examine(at(ledger, field, row, value), market)
    # An order is decided one bar before the position that answers it.
    named = row + 1 if field == "action" else row
    assert broken(report)[rule] == named
    assert any(line.startswith(rule) and f"(row {named})" in line for line in report.failures)


@pytest.fixture
def span(market):
    """Half-open range of all bar ends."""
    times = market["timestamp"].to_list()
    return times[0], times[-1] + timedelta(minutes=10)


def cut(ledger, rows):
    """The consistent ledger of the given rows alone, its last reward closed."""
    parts = {item.name: getattr(ledger, item.name) for item in fields(ledger)}
    kept = {name: values[rows].copy() for name, values in parts.items() if isinstance(values, np.ndarray)}
    kept["reward"][-1] = -(kept["fee"][-1] + kept["slippage"][-1])
    return changed(ledger, **kept)


def test_an_account_that_leaves_out_the_beginning_or_the_end_is_found(ledger, market, span):
    rule = "the account covers the whole span, up to its end or to ruin"
    late = replay(ACTIONS[1:], market[1:], pair=TWO, settings=EXECUTION)
    for part, row in ((late, 0), (cut(ledger, slice(None, 6)), 5)):
        assert examine(part, market).passed
        assert broken(examine(part, market, span=span)) == {rule: row}
    assert examine(ledger, market, span=span).passed


def test_an_account_of_another_span_is_found(ledger, market, span):
    later = tuple(time + timedelta(days=1) for time in span)
    assert broken(examine(ledger, market, span=later)) == {
        "the account covers the whole span, up to its end or to ruin": 0
    }


def test_ruin_is_exactly_where_nothing_is_left(market, span):
    ruined = replay(ACTIONS, market, pair=TWO, settings=EXECUTION, initial_capital=8.0)
    assert ruined.ruined
    assert len(ruined) < len(ACTIONS)
    assert examine(ruined, market, span=span).passed
    last = len(ruined) - 1
    assert broken(examine(changed(ruined, ruined=False), market)) == {"net value is positive until ruin": last}


def test_a_surviving_account_that_calls_itself_ruined_is_found(ledger, market):
    part = changed(cut(ledger, slice(None, 6)), ruined=True)
    assert broken(examine(part, market)) == {"net value is positive until ruin": 5}


def test_a_better_fill_than_the_touch_is_found_where_all_else_agrees(ledger, market):
    """Two units at 1: the touch is 0.5 away, the walk 0.6 at 0.5, 0.6 at 1.5, 0.6 at 2.5, 0.2 at 3.5 = 3.4."""
    assert ledger.slippage[1] == pytest.approx(3.4)
    cheap = examine(with_other_loss(ledger, 1, 0.99 - 3.4), market)
    assert broken(cheap) == {"fills lie inside the book": 1, "slippage is that of walking the book": 1}
    dear = examine(with_other_loss(ledger, 1, 9.01 - 3.4), market)
    assert broken(dear) == {"fills lie inside the book": 1, "slippage is that of walking the book": 1}
    plausible = examine(with_other_loss(ledger, 1, 0.5), market)
    assert broken(plausible) == {"slippage is that of walking the book": 1}


def test_a_pending_order_must_die_at_the_gap(ledger, market):
    """Who does not see the gap executes the order of row 5 at row 6."""
    seamless = replay(ACTIONS, market.with_columns(pl.lit(0, pl.Int32).alias("segment")), pair=TWO, settings=EXECUTION)
    assert seamless.position[6] != ledger.position[6]
    assert broken(examine(seamless, market))["no trade by an order from before a gap"] == 6


def test_an_order_that_came_a_bar_late_is_found(ledger, market):
    late = replay(np.append([1], ACTIONS[:-1]), market, pair=TWO, settings=EXECUTION)
    report = examine(changed(late, action=ledger.action), market)
    assert broken(report)["position is what the order asked for"] == 1


def test_a_purchase_without_asks_is_found(market):
    """The penalty price keeps the replay finite; the audit says that nobody could have bought there."""
    actions = ACTIONS.copy()
    actions[7] = 2
    report = examine(replay(actions, market, pair=TWO, settings=EXECUTION), market)
    assert broken(report) == {"no trade on an empty side of the book": 8}


def test_another_commission_than_the_agreed_one_is_found(market):
    dearer = EXECUTION.model_copy(update={"commission_rate": 0.0011})
    report = examine(replay(ACTIONS, market, pair=TWO, settings=dearer), market)
    assert broken(report) == {"fee is rate * turnover * mark": 1}


def test_beyond_the_visible_depth_only_the_policy_in_force_may_price(book_bars):
    """2 million at 1.0 against 0.5 million a side: the curve asks more for the rest than the last level does."""
    pair = TWO.model_copy(update={"max_position": 2e6})
    bars = book_bars([1.0, 1.0], size=1e5, tick=1e-5)
    policies = {name: ExecutionSettings(depth_policy=name) for name in ("extrapolate", "last_level")}
    ledgers = {name: replay([2, 1], bars, pair=pair, settings=policy) for name, policy in policies.items()}
    assert ledgers["extrapolate"].slippage[0] > ledgers["last_level"].slippage[0]
    for name, policy in policies.items():
        assert examine(ledgers[name], bars, pair=pair, settings=policy).failures == ()
    beyond = examine(ledgers["extrapolate"], bars, pair=pair, settings=policies["last_level"])
    assert broken(beyond) == {"fills lie inside the book": 0, "slippage is that of walking the book": 0}
    cheaper = examine(ledgers["last_level"], bars, pair=pair, settings=policies["extrapolate"])
    assert broken(cheaper) == {"slippage is that of walking the book": 0}
    with pytest.raises(MarketDataError, match="cannot fill"):
        examine(ledgers["last_level"], bars, pair=pair, settings=ExecutionSettings(depth_policy="reject"))


def test_a_settled_ledger_passes_and_its_detour_is_not_taken_for_a_flip(book_bars):
    settle = ExecutionSettings(horizon_boundary="settle")
    bars = book_bars([100.0, 101.0, 102.0, 103.0], size=1.0, tick=1.0)
    ledger = replay([2, 2, 0, 1], bars, pair=TWO, settings=settle, horizon_starts=np.array([1, 2]))
    assert ledger.turnover.tolist() == [2, 4, 4, 2]
    assert examine(ledger, bars, settings=settle).failures == ()
    assert broken(examine(ledger, bars, settings=ExecutionSettings()))["slippage is that of walking the book"] == 1


def test_a_bar_left_out_is_named_and_no_book_is_looked_at(ledger, market):
    report = examine(ledger, market.filter(pl.int_range(pl.len()) != 7))
    assert broken(report) == {"bars are those of the market, none left out": 7}
    assert "mark is the mid of the book" not in {check.rule for check in report.checks}


def test_a_ruined_ledger_can_be_honest(book_bars):
    bars = book_bars([100.0, 150.0, 210.0, 100.0])
    ledger = replay([0, 0, 0, 0], bars, pair=TWO, settings=ExecutionSettings())
    assert ledger.ruined
    report = examine(ledger, bars, settings=ExecutionSettings())
    assert report.failures == ()
    assert report.total_return == ledger.performance(52_560).total_return == -1
    assert report.statistics.net_pnl < -ledger.initial_capital


def test_a_ledger_that_is_not_finite_is_refused_by_row(ledger, market):
    with pytest.raises(ValueError, match=r"fee must be finite, got nan at .* \(row 2\)"):
        examine(at(ledger, "fee", 2, np.nan), market)
