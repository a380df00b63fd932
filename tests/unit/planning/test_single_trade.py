"""The planner against every plan that a horizon admits."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.planning import best_plans, horizon_rewards, plan_single_trade
from archetype_dagster.settings import TradeConstraint

CONSTRAINTS = get_args(TradeConstraint)


def admissible(plan: tuple[int, ...], constraint: str) -> bool:
    """At most one entry from flat (and for a round trip one exit to flat), none on the last bar."""
    trades = [(a, b) for a, b in itertools.pairwise((1, *plan)) if a != b]
    shape = [kind for a, b in trades for kind in [("in" if a == 1 else "flip" if b != 1 else "out")]]
    allowed = ([], ["in"]) if constraint == "single_change" else ([], ["in"], ["in", "out"])
    return shape in allowed and plan[-1] == (1, *plan)[-2]


def preference(plan: tuple[int, ...]) -> tuple[int, ...]:
    """Order among plans of equal value: flat, earlier entry, short before long, holding, earlier exit."""
    held = [t for t, action in enumerate(plan) if action != 1]
    if not held:
        return (0,)
    exits = held[-1] + 1 < len(plan)
    return (1, held[0], plan[held[0]], int(exits), held[-1])


def brute_force(mark: Any, costs: Any, m: float, gamma: float, constraint: str) -> tuple[list[int], float]:
    """Best of all 3^h plans, each replayed step by step."""
    best: tuple[float, tuple[int, ...]] | None = None
    for plan in itertools.product(range(3), repeat=len(costs)):
        if not admissible(plan, constraint):
            continue
        value, held = 0.0, 1
        for t, action in enumerate(plan):
            value += gamma**t * (m * (action - 1) * (mark[t + 1] - mark[t]) - costs[t, held, action])
            held = action
        if best is None or (-value, preference(plan)) < (-best[0], preference(best[1])):
            best = (value, plan)
    assert best is not None
    return list(best[1]), best[0]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.7])
@pytest.mark.parametrize("free_holding", [True, False])
def test_plans_equal_brute_force(constraint: TradeConstraint, gamma: float, free_holding: bool) -> None:
    rng = np.random.default_rng([int(100 * gamma), free_holding])
    kinds = set()
    for horizon in (1, 2, 3, 5, 6):
        mark = 100 + rng.normal(size=(12, horizon + 1)).cumsum(axis=1)
        costs = rng.exponential(1.0, (12, horizon, 3, 3))
        if free_holding:
            costs[..., range(3), range(3)] = 0.0
        plans = best_plans(mark, costs, max_position=1.5, gamma=gamma, trade_constraint=constraint)
        for b in range(12):
            actions, value = brute_force(mark[b], costs[b], 1.5, gamma, constraint)
            assert plans.actions[b].tolist() == actions
            assert plans.values[b] == pytest.approx(value, rel=1e-9, abs=1e-9)
            kinds.add((actions[-1], actions.count(1) == horizon))
    assert {(0, False), (2, False), (1, True)} <= kinds


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@given(data=st.data(), horizon=st.integers(1, 6), gamma=st.sampled_from([1.0, 0.5]))
@settings(max_examples=120, deadline=None)
def test_exact_ties_go_to_flat_then_earlier_entry_then_short_then_holding_then_earlier_exit(
    constraint: TradeConstraint, data: st.DataObject, horizon: int, gamma: float
) -> None:
    # Small whole numbers and powers of two make every value exact, and ties common.
    whole = st.integers(0, 2)
    mark = np.array(data.draw(st.lists(whole, min_size=horizon + 1, max_size=horizon + 1)), dtype=float) + 8
    costs = np.array(data.draw(st.lists(whole, min_size=9 * horizon, max_size=9 * horizon)), dtype=float)
    costs = costs.reshape(horizon, 3, 3) / 2
    if data.draw(st.booleans()):
        costs[:, range(3), range(3)] = 0.0
    plan = plan_single_trade(mark, costs, max_position=2.0, gamma=gamma, trade_constraint=constraint)
    assert plan.tolist() == brute_force(mark, costs, 2.0, gamma, constraint)[0]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@given(seed=st.integers(0, 2**32), horizon=st.integers(1, 90), gamma=st.floats(0.5, 1.0))
@settings(max_examples=60, deadline=None)
def test_replaying_a_plan_earns_its_planned_value(
    constraint: TradeConstraint, seed: int, horizon: int, gamma: float
) -> None:
    rng = np.random.default_rng(seed)
    mark = 100 * np.exp(rng.normal(0, 0.002, (5, horizon + 1)).cumsum(axis=1))
    costs = rng.exponential(0.5, (5, horizon, 3, 3)) * (1 - np.eye(3))
    plans = best_plans(mark, costs, max_position=8.0, gamma=gamma, trade_constraint=constraint)
    rewards = horizon_rewards(plans.actions, mark, costs, max_position=8.0)
    assert rewards @ gamma ** np.arange(horizon) == pytest.approx(plans.values, rel=1e-9, abs=1e-7)
    assert (plans.values >= 0).all()
    steps = np.abs(np.diff(plans.actions, axis=1, prepend=1))
    assert (steps.sum(axis=1) <= (1 if constraint == "single_change" else 2)).all()
    assert steps.max() <= 1
    assert not steps[:, -1].any()


def test_commission_decides_whether_a_move_is_worth_taking() -> None:
    # Closes 100, 100.05, 100.05 with size 1: long pays at 0.0002 and not at 0.001.
    mark = np.array([100.0, 100.05, 100.05])
    change = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))

    def costs(rate: float) -> Any:
        return rate * change * mark[:-1, np.newaxis, np.newaxis]

    plan = plan_single_trade(mark, costs(0.0002), max_position=1.0)
    assert plan.tolist() == [2, 2]
    assert horizon_rewards(plan, mark, costs(0.0002), max_position=1.0).sum() == pytest.approx(0.030)
    assert horizon_rewards([2, 1], mark, costs(0.0002), max_position=1.0).sum() == pytest.approx(0.00999)
    assert plan_single_trade(mark, costs(0.001), max_position=1.0).tolist() == [1, 1]


def test_round_trip_leaves_before_the_move_turns() -> None:
    mark = np.array([10.0, 12.0, 14.0, 11.0, 9.0])
    costs = np.zeros((4, 3, 3))
    assert plan_single_trade(mark, costs, max_position=1.0).tolist() == [1, 1, 0, 0]
    # Selling short at 14 earns 5; the round trip 10 -> 14 earns only 4.
    assert plan_single_trade(mark, costs, max_position=1.0, trade_constraint="round_trip").tolist() == [1, 1, 0, 0]
    mark[-1] = 12.0
    assert plan_single_trade(mark, costs, max_position=1.0, trade_constraint="round_trip").tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_one_horizon_and_a_batch_of_many_blocks_give_the_same_plans(constraint: TradeConstraint) -> None:
    rng = np.random.default_rng(4)
    mark = 100 + rng.normal(size=(1200, 73)).cumsum(axis=1)
    costs = rng.random((1200, 72, 3, 3)) * (1 - np.eye(3))
    plans = plan_single_trade(mark, costs, max_position=8.0, gamma=0.99, trade_constraint=constraint)
    assert plans.dtype == np.int8
    assert plans.shape == (1200, 72)
    for b in (0, 454, 455, 1199):
        alone = plan_single_trade(mark[b], costs[b], max_position=8.0, gamma=0.99, trade_constraint=constraint)
        assert np.array_equal(alone, plans[b])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.0}, r"gamma must lie in \(0, 1\], got gamma=0.0"),
        ({"trade_constraint": "many"}, "trade_constraint must be 'single_change' or 'round_trip', got"),
        ({"costs": np.zeros((2, 3, 3))}, r"costs must be .* with the batch and h=3 of mark"),
        ({"costs": np.full((3, 3, 3), np.nan)}, "mark and costs must be finite"),
        ({"mark": [1.0, np.nan, 1.0, 1.0]}, r"the mark at index \(1,\) is nan"),
        ({"max_position": 0.0}, "max_position must be positive"),
    ],
)
def test_wrong_input_names_the_rule(change: dict[str, object], message: str) -> None:
    arguments = {"mark": np.ones(4), "costs": np.zeros((3, 3, 3)), "max_position": 1.0}
    with pytest.raises(ValueError, match=message):
        plan_single_trade(**{**arguments, **change})  # type: ignore[arg-type]
