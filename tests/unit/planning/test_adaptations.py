"""Adaptations against the replay of every (step, direction), one at a time."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.planning import (
    adaptation_returns,
    apply_override,
    horizon_rewards,
    rank_adaptations,
)
from archetype_dagster.settings import OverrideRule

OVERRIDES = get_args(OverrideRule)


def replayed(base: Any, mark: Any, costs: Any, m: float, override: str, initial: int) -> dict[tuple[int, int], float]:
    """Return of every legal override of one horizon, written out step by step from Eq. (6)."""
    table = {}
    before = [initial, *base[:-1]]
    for tau, target in itertools.product(range(len(base)), (0, 2)):
        if base[tau] != before[tau] or target == base[tau]:
            continue
        final = list(base)
        for t in range(tau, tau + 1 if override == "step" else len(base)):
            if t > tau and base[t] != base[t - 1]:
                break
            final[t] = target
        held, total = initial, 0.0
        for t, action in enumerate(final):
            total += m * (action - 1) * (mark[t + 1] - mark[t]) - costs[t, held, action]
            held = action
        table[tau, target] = total
    return table


def market(seed: int, batch: int, horizon: int, *, free_holding: bool = True, whole: bool = False) -> tuple[Any, ...]:
    """Random base plans that hold for a while, prices and costs; whole numbers make exact ties common."""
    rng = np.random.default_rng(seed)
    changes = rng.random((batch, horizon)) < 0.3
    base = rng.integers(0, 3, (batch, horizon)).astype(np.int8)
    for t in range(1, horizon):
        base[:, t] = np.where(changes[:, t], base[:, t], base[:, t - 1])
    mark = 100 + rng.integers(-1, 2, (batch, horizon + 1)).cumsum(axis=1).astype(float)
    costs = rng.integers(0, 3, (batch, horizon, 3, 3)).astype(float)
    if not whole:
        mark += rng.normal(size=mark.shape)
        costs += rng.random(costs.shape)
    if free_holding:
        costs[..., range(3), range(3)] = 0.0
    return base, mark, costs, rng.integers(0, 3, batch)


@pytest.mark.parametrize("override", OVERRIDES)
@given(
    seed=st.integers(0, 2**32), horizon=st.integers(1, 12), free_holding=st.booleans(), max_position=st.floats(0.1, 1e4)
)
@settings(max_examples=60, deadline=None)
def test_closed_form_equals_replay_of_every_override(
    override: OverrideRule, seed: int, horizon: int, free_holding: bool, max_position: float
) -> None:
    base, mark, costs, initial = market(seed, 4, horizon, free_holding=free_holding)
    table = adaptation_returns(base, mark, costs, max_position=max_position, override=override, initial_action=initial)
    for b in range(len(base)):
        expected = replayed(base[b], mark[b], costs[b], max_position, override, int(initial[b]))
        legal = {(int(tau), 2 * int(d)) for tau, d in np.argwhere(table.legal[b])}
        assert legal == set(expected)
        for (tau, target), value in expected.items():
            assert table.returns[b, tau, target // 2] == pytest.approx(value, rel=1e-9, abs=1e-9 * max_position)
    assert np.array_equal(table.returns == -np.inf, ~table.legal)
    rewards = horizon_rewards(base, mark, costs, max_position=max_position, initial_action=initial)
    assert np.array_equal(table.base_rewards, rewards)
    assert np.array_equal(table.base_return, rewards.sum(axis=1))


@pytest.mark.parametrize("override", OVERRIDES)
def test_applying_an_override_earns_what_the_table_says(override: OverrideRule) -> None:
    base, mark, costs, initial = market(7, 40, 15)
    table = adaptation_returns(base, mark, costs, max_position=3.0, override=override, initial_action=initial)
    horizon_of, steps, directions = np.nonzero(table.legal)
    final = apply_override(base[horizon_of], steps, 2 * directions - 1, override)
    rewards = horizon_rewards(
        final, mark[horizon_of], costs[horizon_of], max_position=3.0, initial_action=initial[horizon_of]
    )
    assert np.allclose(rewards.sum(axis=1), table.returns[table.legal], rtol=1e-9, atol=1e-9)


def test_blocks_do_not_change_the_table() -> None:
    base, mark, costs, initial = market(3, 2000, 72)
    whole = adaptation_returns(base, mark, costs, max_position=8.0, override="hold", initial_action=initial)
    part = slice(1500, 1510)
    alone = adaptation_returns(
        base[part], mark[part], costs[part], max_position=8.0, override="hold", initial_action=initial[part]
    )
    assert np.array_equal(whole.returns[part], alone.returns)


@pytest.mark.parametrize("override", OVERRIDES)
def test_ranking_is_the_sorted_replay_with_ties_to_the_earlier_step_then_short(override: OverrideRule) -> None:
    base, mark, costs, _ = market(11, 60, 8, whole=True)
    ranked = rank_adaptations(base, mark, costs, max_position=1.0, top=5, override=override)
    ties = 0
    for b in range(len(base)):
        table = replayed(base[b], mark[b], costs[b], 1.0, override, 1)
        best = sorted(table, key=lambda cell: (-table[cell], *cell))[:5]
        ties += len(best) - len({table[cell] for cell in best})
        missing = 5 - len(best)
        assert ranked.steps[b].tolist() == [tau for tau, _ in best] + [-1] * missing
        assert ranked.directions[b].tolist() == [target - 1 for _, target in best] + [0] * missing
        assert ranked.returns[b].tolist() == [table[cell] for cell in best] + [-np.inf] * missing
    assert ties > 50


def test_ranking_pads_where_fewer_legal_adaptations_exist() -> None:
    base = np.array([[2, 2]])
    mark = np.array([[100.0, 101.0, 99.0]])
    ranked = rank_adaptations(base, mark, np.zeros((1, 2, 3, 3)), max_position=1.0, top=3)
    assert ranked.steps.tolist() == [[1, -1, -1]]
    assert ranked.directions.tolist() == [[-1, 0, 0]]
    assert ranked.returns.tolist() == [[3.0, -np.inf, -np.inf]]
    assert ranked.base_return.tolist() == [-1.0]


def test_wrong_input_names_the_rule() -> None:
    base, mark, costs, _ = market(0, 2, 4)
    with pytest.raises(ValueError, match=r"top must be positive, got top=0"):
        rank_adaptations(base, mark, costs, max_position=1.0, top=0)
    with pytest.raises(ValueError, match=r"override must be 'step' or 'hold', got override='both'"):
        adaptation_returns(base, mark, costs, max_position=1.0, override="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got shapes \(4,\) and \(5,\)"):
        adaptation_returns(base[0], mark[0], costs[0], max_position=1.0)
    with pytest.raises(ValueError, match=r"base_actions must be \(B, h\) and mark \(B, h \+ 1\), got shapes \(1, 4\)"):
        adaptation_returns(base[:1], mark, costs, max_position=1.0)
    with pytest.raises(ValueError, match=r"costs must be .* with the batch and h=4"):
        adaptation_returns(base, mark, costs[:1], max_position=1.0)
    with pytest.raises(ValueError, match="mark and costs must be finite"):
        adaptation_returns(base, np.where(mark == mark[0, 2], np.nan, mark), costs, max_position=1.0)
