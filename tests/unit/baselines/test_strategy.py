from collections.abc import Callable

import numpy as np
import pytest

from archetype_dagster.baselines import mean_reward, rolled_out
from archetype_dagster.envs import reward_table
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards


def test_decisions_are_rolled_out_from_flat_in_each_segment() -> None:
    rng = np.random.default_rng(0)
    following = rng.integers(3, size=(50, 3), dtype=np.int8)
    segment = np.repeat(np.arange(4), [1, 20, 17, 12]).astype(np.int32)
    expected = []
    for row in range(50):
        held = 1 if row == 0 or segment[row] != segment[row - 1] else expected[-1]
        expected.append(int(following[row, held]))
    actions = rolled_out(following, segment)
    assert actions.dtype == np.int8
    assert actions.tolist() == expected


def test_one_decision_for_each_row_and_held_action_is_needed() -> None:
    with pytest.raises(ValueError, match=r"T = 4 rows of segment, got \(5, 3\)"):
        rolled_out(np.ones((5, 3), dtype=np.int8), np.zeros(4, dtype=np.int32))


def test_the_mean_reward_enters_each_segment_flat_and_leaves_out_what_cannot_be_traded(
    learnable_split: Callable[..., MarketDataset],
) -> None:
    dataset = learnable_split(segments=(30, 20))
    actions = np.random.default_rng(0).integers(3, size=50, dtype=np.int8)
    earned = []
    for rows in (slice(0, 29), slice(30, 49)):
        mark = dataset.mark[rows.start : rows.stop + 1]
        money = horizon_rewards(actions[rows], mark, dataset.costs[rows], max_position=dataset.max_position)
        earned += list(100 * money / (dataset.max_position * mark[:-1]))
    assert mean_reward(actions, dataset, reward_table(dataset)) == pytest.approx(np.mean(earned), rel=1e-12)
