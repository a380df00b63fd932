import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.baselines.transitions import optimal_action_values, rewards_from_each, rolled_from_each
from archetype_dagster.envs import reward_table
from archetype_dagster.market.dataset import MarketDataset


def best_path(rewards: np.ndarray, row: int, end: int, held: int, first: int, gamma: float) -> float:
    """The best discounted sum over every path of actions on rows row..end-1 that begins with `first`."""
    sums = []
    for later in itertools.product(range(3), repeat=end - row - 1):
        path = (held, first, *later)
        sums.append(sum(gamma**k * rewards[row + k, path[k], path[k + 1]] for k in range(end - row)))
    return float(max(sums))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), gamma=st.sampled_from([1.0, 0.9]))
def test_the_teacher_equals_the_best_of_all_action_paths(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    usable = np.array([True] * 5 + [False] + [True] * 2 + [False, False])
    rewards = rng.normal(size=(10, 3, 3)) * usable[:, None, None]
    values = optimal_action_values(rewards, usable, gamma=gamma)
    for first_row, end in ((0, 5), (6, 8)):
        for row, held, first in itertools.product(range(first_row, end), range(3), range(3)):
            assert values[row, held, first] == pytest.approx(best_path(rewards, row, end, held, first, gamma))
    assert not values[~usable].any()


def test_the_teacher_solves_its_bellman_equation_on_a_market_with_gaps_and_delay(
    learnable_split: Callable[..., MarketDataset],
) -> None:
    table = reward_table(learnable_split(segments=(37, 3, 64), delay=1))
    values = optimal_action_values(table.percent, table.usable, gamma=0.97)
    following = 0.97 * values[1:].max(axis=2)
    expected = (table.percent[:-1] + following[:, None]) * table.usable[:-1, None, None]
    np.testing.assert_allclose(values[:-1], expected, atol=1e-12)


def test_the_teacher_refuses_rows_whose_price_after_is_unknown() -> None:
    with pytest.raises(ValueError, match="last row cannot be usable"):
        optimal_action_values(np.zeros((2, 3, 3)), np.array([True, True]), gamma=1.0)
    with pytest.raises(ValueError, match=r"must be \(T, 3, 3\)"):
        optimal_action_values(np.zeros((3, 3)), np.array([True, False]), gamma=1.0)


def test_stretches_entered_with_each_action_match_a_step_by_step_reading() -> None:
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 3, (4, 3, 5, 3)).astype(np.int8)
    rewards = rng.normal(size=(4, 5, 3, 3))
    actions = rolled_from_each(maps)
    earned = rewards_from_each(rewards, actions)
    for n, entered in itertools.product(range(4), range(3)):
        held = entered
        for bar in range(5):
            taken = maps[n, entered, bar, held]
            assert actions[n, entered, bar] == taken
            assert earned[n, entered, bar] == rewards[n, bar, held, taken]
            held = taken
    np.testing.assert_array_equal(rolled_from_each(maps[:, :1]), rolled_from_each(np.repeat(maps[:, :1], 3, axis=1)))
