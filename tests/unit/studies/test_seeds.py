"""The policy's seeds against every method: pair by pair, ruin below everything, undefined runs on either side."""

from __future__ import annotations

import numpy as np
import pytest

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.studies.comparison import POLICY, Method, MethodComparison
from archetype_dagster.studies.seeds import seed_spreads

NO_BARS = Ledger(*(np.empty(0) for _ in range(11)), initial_capital=1.0, max_position=1.0, commission_rate=0.0)


def run(sharpe, *, ruined=False, annual_volatility=0.5):
    return Performance(
        total_return=-1.0 if ruined else 0.1,
        annual_volatility=annual_volatility,
        max_drawdown=1.0 if ruined else 0.2,
        sharpe=sharpe,
        calmar=sharpe,
        sortino=sharpe,
        ruined=ruined,
    )


def shares(policy, drawn, fixed):
    """Share of the policy's seeds ahead of each method, by metric and method."""
    seeds = {POLICY: policy, **drawn}
    methods = {name: Method(name, NO_BARS, runs[0]) for name, runs in seeds.items()}
    methods |= {name: Method(name, NO_BARS, one) for name, one in fixed.items()}
    rows = [
        {"method": name, "seed": seed, **one.as_dict()} for name, runs in seeds.items() for seed, one in enumerate(runs)
    ]
    spreads = seed_spreads(rows, MethodComparison("ETH", methods, {}), confidence=0.95)
    return {metric: spread["beats"] for metric, spread in spreads.items()}


def test_seeds_that_survive_beat_a_method_that_was_ruined_in_all_of_its_own():
    lost = [run(3.0, ruined=True, annual_volatility=0.1), run(-4.0, ruined=True, annual_volatility=0.1)]
    found = shares([run(-1.0), run(-2.0)], {"dqn": lost}, {"macd": run(9.0, ruined=True, annual_volatility=0.1)})
    assert all(beats == {"dqn": 1.0, "macd": 1.0} for beats in found.values())


def test_a_seed_that_was_ruined_beats_nothing_whatever_it_earned_before():
    survivors = [run(-5.0), run(-6.0)]
    found = shares([run(9.0, ruined=True, annual_volatility=0.1), run(1.0)], {"dqn": survivors}, {"macd": run(-1.0)})
    assert all(found[metric] == {"dqn": 0.5, "macd": 0.5} for metric in ("sharpe", "calmar", "sortino"))
    lost = shares([run(9.0, ruined=True)], {"dqn": [run(-4.0, ruined=True)]}, {})
    assert all(beats == {"dqn": 0.0} for beats in lost.values())


def test_every_seed_is_set_against_every_seed_of_a_method_that_draws():
    drawn = [run(1.0), run(9.0, ruined=True), run(2.0)]
    found = shares([run(0.5), run(1.5), run(2.5)], {"ppo": drawn}, {})
    assert found["sharpe"] == {"ppo": pytest.approx((1 + 2 + 3) / 9)}


def test_undefined_runs_of_the_policy_beat_nothing_and_those_of_a_method_are_left_out():
    policy, flat = [run(1.0), run(None)], [run(None), run(0.5)]
    found = shares(policy, {"ppo": flat}, {"always_flat": run(None)})
    assert found["sharpe"] == {"ppo": 0.5, "always_flat": None}
