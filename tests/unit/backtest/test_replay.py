"""Replay against hand ledgers: what is held, paid and earned at each bar."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archetype_dagster.backtest.ledger import reconcile
from archetype_dagster.backtest.replay import price_bars, replay, replay_priced
from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.market.book import trade_costs
from archetype_dagster.planning import horizon_rewards
from archetype_dagster.planning.single_trade import plan_single_trade
from archetype_dagster.settings import ExecutionSettings, PairSettings

PAPER = ExecutionSettings()
UNIT = PairSettings(base="X", max_position=1, beta_1=0, liquidity_scale=1, synthetic_price=1, tick_size=0.01)


def test_a_round_trip_is_booked_bar_by_bar(priced):
    ledger = replay_priced([2, 2, 1, 1], priced([100, 110, 105, 90], rate=0.01, half_spread=0.5), settings=PAPER)
    assert ledger.position.tolist() == [1, 1, 0, 0]
    assert ledger.traded.tolist() == [1, 0, -1, 0]
    assert ledger.fee == pytest.approx([1, 0, 1.05, 0])
    assert ledger.slippage == pytest.approx([0.5, 0, 0.5, 0])
    assert ledger.cash == pytest.approx([-1.5, -1.5, 101.95, 101.95])
    assert ledger.net_value == pytest.approx([98.5, 108.5, 101.95, 101.95])
    assert ledger.reward == pytest.approx([8.5, -5, -1.55, 0])
    assert ledger.initial_capital == 100
    assert ledger.trades == 2


def test_a_signal_of_the_last_bar_does_not_earn_that_bar(priced):
    """A bar that rose from 100 to 110 and stays there pays nothing to who buys at its end."""
    ledger = replay_priced([2, 2, 2], priced([110, 110, 110]), settings=PAPER)
    assert ledger.reward.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rate", "constraint", "plan", "earned"),
    [
        (0.0002, [2, 2, 2], [2, 2], 0.05 - 0.02),
        (0.0002, [2, 1, 1], [2, 2], 0.05 - 0.02 - 0.0002 * 100.05),
        (0.001, [1, 1, 1], [1, 1], 0.0),
    ],
)
def test_replay_and_planner_charge_the_same_fee(priced, rate, constraint, plan, earned):
    bars = priced([100, 100.05, 100.05], rate=rate)
    costs = (bars.slippage + bars.commission)[:2]
    assert plan_single_trade(bars.mark, costs, max_position=1.0).tolist() == plan
    assert replay_priced(constraint, bars, settings=PAPER).reward.sum() == pytest.approx(earned, abs=1e-12)


def test_a_flip_realises_the_old_position_and_pays_for_both(priced):
    ledger = replay_priced([2, 0, 0], priced([100, 110, 105], rate=0.001), settings=PAPER)
    assert ledger.traded.tolist() == [1, -2, 0]
    assert ledger.fee == pytest.approx([0.1, 0.22, 0])
    assert ledger.reward == pytest.approx([10 - 0.1, 5 - 0.22, 0])
    assert ledger.cash[1] == pytest.approx(100 - 100 - 0.1 + 220 - 0.22)


def test_rewards_and_equity_are_one_accounting(priced):
    ledger = replay_priced([2, 1], priced([100, 100.5], rate=0.01), settings=PAPER)
    assert ledger.reward.sum() == pytest.approx(0.5 - 1 - 1.005)
    assert ledger.net_value[-1] - 100 == pytest.approx(ledger.reward.sum(), abs=1e-12)


def test_short_proceeds_never_raise_the_exposure(priced):
    ledger = replay_priced([2, 0] * 10, priced(np.full(20, 100.0)), settings=PAPER)
    assert np.abs(ledger.position).max() == 1
    assert np.abs(ledger.traded).max() == 2


def test_a_year_of_small_gains_is_kept_in_full(priced):
    """In float32 a gain of 0.02 on 1,000,000 is lost at every bar."""
    bars = priced(100 + 0.02 * np.arange(52_561))
    ledger = replay_priced(np.full(52_561, 2), bars, settings=PAPER, initial_capital=1e6)
    assert ledger.net_value[-1] == pytest.approx(1_001_051.2, rel=1e-12)
    assert 1e6 + ledger.reward.sum() == pytest.approx(1_001_051.2, rel=1e-12)


def test_a_position_costs_nothing_to_keep_over_a_horizon_end(priced):
    ledger = replay_priced([2] * 6, priced(np.full(6, 100.0), rate=0.01), settings=PAPER)
    assert ledger.fee.sum() == pytest.approx(1.0)


def test_settling_closes_at_each_horizon_start_and_pays_for_it(priced):
    settle = ExecutionSettings(horizon_boundary="settle")
    bars = priced([100, 101, 102, 103], rate=0.01)
    ledger = replay_priced([2, 2, 2, 1], bars, settings=settle, horizon_starts=np.array([0, 2]))
    assert ledger.traded.tolist() == [1, 0, 0, -1]
    assert ledger.turnover.tolist() == [1, 0, 2, 1]
    assert ledger.fee == pytest.approx([1, 0, 2.04, 1.03])
    assert reconcile(ledger).passed
    with pytest.raises(ValueError, match="needs horizon_starts"):
        replay_priced([2, 2, 2, 1], bars, settings=settle)
    with pytest.raises(ValueError, match=r"rows in 0\.\.3, got 0\.\.4"):
        replay_priced([2, 2, 2, 1], bars, settings=settle, horizon_starts=np.array([0, 4]))


def test_a_delayed_order_executes_later_and_dies_at_a_gap(priced):
    delayed = ExecutionSettings(execution_delay_bars=1)
    bars = priced(np.full(6, 100.0), segment=[0, 0, 0, 1, 1, 1])
    ledger = replay_priced([2, 2, 0, 1, 1, 2], bars, settings=delayed)
    assert ledger.position.tolist() == [0, 1, 1, 1, 0, 0]
    assert ledger.action.tolist() == [2, 2, 0, 1, 1, 2]


def test_profit_over_a_gap_is_booked(priced):
    ledger = replay_priced([2, 2, 1], priced([100, 100, 80], segment=[0, 0, 1]), settings=PAPER)
    assert ledger.reward.tolist() == [0, -20, 0]


@pytest.mark.parametrize("delay", [0, 1, 3])
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_positions_equal_an_order_queue_worked_through_bar_by_bar(priced, delay, data):
    actions = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    gaps = data.draw(st.lists(st.booleans(), min_size=len(actions), max_size=len(actions)))
    segment = np.cumsum(gaps)
    bars = priced(np.full(len(actions), 100.0), segment=segment)
    held, expected = 1, []
    for row in range(len(actions)):
        if row >= delay and segment[row - delay] == segment[row]:
            held = actions[row - delay]
        expected.append(held - 1.0)
    execution = ExecutionSettings(execution_delay_bars=delay)
    assert replay_priced(actions, bars, settings=execution).position.tolist() == expected


@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_ledger_reconciles(priced, data):
    size = data.draw(st.integers(1, 30))
    actions = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    mark = data.draw(st.lists(st.floats(1, 1e5), min_size=size, max_size=size))
    bars = priced(mark, rate=0.0002, half_spread=0.01, max_position=8)
    report = reconcile(replay_priced(actions, bars, settings=PAPER))
    assert report.failures == ()


def test_ruin_ends_the_ledger(priced):
    ledger = replay_priced([0, 0, 0, 0], priced([100, 150, 200, 10]), settings=PAPER)
    assert ledger.ruined
    assert ledger.net_value.tolist() == [100, 50, 0]
    assert ledger.reward.tolist() == [-50, -50, 0]
    result = ledger.performance()
    assert (result.total_return, result.max_drawdown, result.ruined) == (-1, 1, True)
    assert reconcile(ledger).passed


def test_more_capital_survives_the_same_trades(priced):
    ledger = replay_priced([0, 0, 0, 0], priced([100, 150, 200, 10]), settings=PAPER, initial_capital=200.0)
    assert not ledger.ruined
    assert ledger.net_value.tolist() == [200, 150, 100, 290]


def test_capital_comes_from_the_call_then_the_settings_then_the_first_mark(priced):
    bars, stated = priced([100, 100], max_position=8), ExecutionSettings(initial_capital=5000)
    assert replay_priced([1, 1], bars, settings=PAPER).initial_capital == 800
    assert replay_priced([1, 1], bars, settings=stated).initial_capital == 5000
    assert replay_priced([1, 1], bars, settings=stated, initial_capital=70.0).initial_capital == 70


@pytest.mark.parametrize(
    ("actions", "rule"),
    [
        ([1], "one action per bar"),
        ([[1, 1]], "one action per bar"),
        ([1, 3], "got 3 at row 1"),
        ([-1, 1], "got -1 at row 0"),
        ([1.0, 1.0], "integers"),
    ],
)
def test_actions_that_are_none_are_refused(priced, actions, rule):
    with pytest.raises(ValueError, match=rule):
        replay_priced(actions, priced([100, 100]), settings=PAPER)


@pytest.mark.parametrize("capital", [0.0, -1.0, np.nan, np.inf])
def test_capital_that_is_none_is_refused(priced, capital):
    with pytest.raises(ValueError, match="initial_capital"):
        replay_priced([1, 1], priced([100, 100]), settings=PAPER, initial_capital=capital)


def test_replay_prices_a_book_by_pair(book_bars):
    ledger = replay([2, 2, 1], book_bars([100.0, 101, 102]), pair="BTC")
    assert ledger.max_position == 8
    assert ledger.initial_capital == 800
    assert ledger.slippage == pytest.approx([8 * 0.005, 0, 8 * 0.005])
    assert ledger.fee == pytest.approx([0.0002 * 800, 0, 0.0002 * 816])
    assert ledger.net_value[-1] == pytest.approx(800 + 16 - 0.08 - 0.0002 * 1616)
    with pytest.raises(SettingsError, match="unknown pair 'XYZ'"):
        replay([1, 1], book_bars([100.0, 101]), pair="XYZ")


def test_replaying_a_plan_earns_its_planned_value(book_bars):
    """One cost function: on books too thin for the position, the planner and the replay still agree."""
    rng = np.random.default_rng(0)
    bars = book_bars(30_000 * np.exp(np.cumsum(rng.normal(0, 0.002, 73))), size=2.0, tick=1.0)
    costs = trade_costs(bars, max_position=8.0, commission_rate=0.0002)
    mark = price_bars(bars, UNIT, PAPER).mark
    plan = plan_single_trade(mark, costs[:-1], max_position=8.0)
    planned = horizon_rewards(plan, mark, costs[:-1], max_position=8.0)
    ledger = replay(np.append(plan, plan[-1]), bars, pair="BTC")
    assert np.abs(plan - 1).any()
    assert ledger.reward[:-1] == pytest.approx(planned, rel=1e-12, abs=1e-9)
    assert ledger.reward.sum() == pytest.approx(planned.sum(), rel=1e-9)
    assert ledger.net_value[-1] - ledger.initial_capital == pytest.approx(planned.sum(), rel=1e-9)


def test_size_beyond_the_book_follows_the_named_policy(book_bars):
    """Five asks of 1, 1, 1, 1, 1 at 101..105: what is visible is walked, the rest is never cheaper than the last."""
    bars = book_bars([100.5, 100.5], size=1.0, tick=1.0)
    last = replay([2, 2], bars, pair="BTC", settings=ExecutionSettings(depth_policy="last_level"))
    assert last.slippage[0] == pytest.approx(sum(0.5 + i for i in range(5)) + 3 * 4.5)
    beyond = replay([2, 2], bars, pair="BTC", settings=ExecutionSettings(depth_policy="extrapolate"))
    assert beyond.slippage[0] >= last.slippage[0]
    with pytest.raises(MarketDataError):
        replay([2, 2], bars, pair="BTC", settings=ExecutionSettings(depth_policy="reject"))


def test_bars_with_a_gap_need_their_segments(book_bars):
    bars = book_bars([100.0] * 5).drop("segment")
    assert replay([1] * 5, bars, pair="BTC").trades == 0
    with pytest.raises(MarketDataError, match="segment"):
        replay([1] * 4, bars[[0, 1, 3, 4]], pair="BTC")
