"""Step rewards: positions times moves less the loss of each trade."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.planning import horizon_rewards


@given(seed=st.integers(0, 2**32), horizon=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_sum_of_rewards_is_the_change_of_net_value(seed: int, horizon: int) -> None:
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 3, (3, horizon))
    initial = rng.integers(0, 3, 3)
    mark = 100 + rng.normal(size=(3, horizon + 1)).cumsum(axis=1)
    costs = rng.random((3, horizon, 3, 3))
    rewards = horizon_rewards(actions, mark, costs, max_position=2.5, initial_action=initial)
    for b in range(3):
        cash, held = 1000.0, int(initial[b])
        start = cash + 2.5 * (held - 1) * mark[b, 0]
        for t, action in enumerate(actions[b]):
            cash -= 2.5 * (action - held) * mark[b, t] + costs[b, t, held, action]
            held = int(action)
        end = cash + 2.5 * (held - 1) * mark[b, -1]
        assert rewards[b].sum() == pytest.approx(end - start, rel=1e-9, abs=1e-9)


def test_rewards_of_a_hand_computed_horizon() -> None:
    # Long at the first bar, flipped at the second; 3 m traded in all at 0.0002 commission.
    mark = np.array([100.0, 110.0, 105.0])
    costs = np.zeros((2, 3, 3))
    costs[0, 1, 2] = 0.0002 * 100
    costs[1, 2, 0] = 0.0002 * 2 * 110
    rewards = horizon_rewards([2, 0], mark, costs, max_position=1.0)
    assert rewards.tolist() == [10 - 0.0002 * 100, 5 - 0.0002 * 2 * 110]


def test_many_plans_of_one_horizon_broadcast_over_its_prices() -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, (4, 10, 6))
    mark, costs = 50 + rng.random((4, 7)), rng.random((4, 6, 3, 3))
    together = horizon_rewards(actions, mark[:, None], costs[:, None], max_position=2.0)
    for k in range(10):
        assert np.array_equal(together[:, k], horizon_rewards(actions[:, k], mark, costs, max_position=2.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": [[0, 1, 3]]}, r"actions must be 0 \(short\), 1 \(flat\) or 2 \(long\), got 3"),
        ({"actions": [[0.0, 1.0, 1.0]]}, "actions must be integers, got dtype float64"),
        ({"actions": [[0, 1]]}, r"actions must hold h=3 steps"),
        ({"max_position": -8.0}, r"max_position must be positive and finite, got max_position=-8.0"),
        ({"initial_action": [1, 1]}, r"initial_action must be one action or one per horizon \(1,\)"),
        ({"costs": np.zeros((1, 2, 3, 3))}, r"costs must be \(\.\.\., h, 3, 3\) with the batch and h=3"),
        ({"mark": [[1.0, 2.0, np.nan, 3.0]]}, r"the mark at index \(0, 2\) is nan"),
        ({"costs": np.full((1, 3, 3, 3), np.nan)}, r"the reward at index \(0, 0\) is nan"),
    ],
)
def test_wrong_input_names_the_rule(change: dict[str, object], message: str) -> None:
    arguments = {
        "actions": [[2, 2, 2]],
        "mark": [[1.0, 2.0, 3.0, 4.0]],
        "costs": np.zeros((1, 3, 3, 3)),
        "max_position": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        horizon_rewards(**{**arguments, **change})  # type: ignore[arg-type]
