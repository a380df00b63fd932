from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archetype_dagster.envs import BatchedTradingEnv, reward_table
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards

Split = Callable[..., MarketDataset]


def make(dataset: MarketDataset, *, num_envs: int = 7, episode_bars: int = 9, seed: int = 0) -> BatchedTradingEnv:
    return BatchedTradingEnv(
        dataset, num_envs=num_envs, episode_bars=episode_bars, generator=np.random.default_rng(seed)
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(delay=st.integers(0, 2), seed=st.integers(0, 99))
def test_rewards_are_the_planners_own_in_percent_of_notional(learnable_split: Split, delay: int, seed: int) -> None:
    dataset = learnable_split(segments=(30, 25), delay=delay)
    env = make(dataset, episode_bars=100, seed=seed)
    env.reset()
    rng = np.random.default_rng(seed)
    for _ in range(40):
        row, held, taken = env.rows, env.held, rng.integers(3, size=7)
        marks = dataset.mark[row[:, None] + delay + np.arange(2)]
        money = horizon_rewards(
            taken[:, None],
            marks,
            dataset.costs[row + delay][:, None],
            max_position=dataset.max_position,
            initial_action=held,
        )[:, 0]
        expected = 100 * money / (dataset.max_position * marks[:, 0])
        assert env.step(taken).rewards.tolist() == expected.tolist()


def test_a_whole_episode_earns_what_its_actions_earn(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(40,))
    env = make(dataset, num_envs=1, episode_bars=12)
    env.reset()
    start = int(env.rows[0])
    actions = np.random.default_rng(1).integers(3, size=min(12, 39 - start))
    steps = [env.step([action]) for action in actions]
    window = slice(start, start + len(actions))
    money = horizon_rewards(
        actions, dataset.mark[start : start + len(actions) + 1], dataset.costs[window], max_position=2.0
    )
    earned = np.array([step.rewards[0] for step in steps]) * 2.0 * dataset.mark[window] / 100
    np.testing.assert_allclose(earned, money, rtol=1e-12)
    assert [bool(step.truncated[0]) for step in steps] == [False] * (len(actions) - 1) + [True]


def test_an_observation_is_the_rows_state_and_the_action_held(learnable_split: Split) -> None:
    dataset = learnable_split()
    env = make(dataset)
    seen = env.reset()
    for _ in range(25):
        assert seen.dtype == np.float32
        np.testing.assert_array_equal(seen[:, :-3], dataset.states[env.rows])
        np.testing.assert_array_equal(seen[:, -3:], np.eye(3)[env.held])
        seen = env.step(np.random.default_rng(0).integers(3, size=7)).observations


@pytest.mark.parametrize("delay", [0, 2])
def test_an_episode_ends_at_its_length_or_where_its_segment_can_be_traded_no_more(
    learnable_split: Split, delay: int
) -> None:
    dataset = learnable_split(segments=(12, 9), delay=delay)
    env = make(dataset, num_envs=50, episode_bars=5)
    env.reset()
    age, segment = np.zeros(50, dtype=int), dataset.segment[env.rows]
    for _ in range(30):
        row, taken = env.rows, np.full(50, 2)
        step = env.step(taken)
        age += 1
        following = dataset.segment[np.minimum(row + 1 + delay + 1, len(dataset) - 1)]
        usable = (following == segment) & (row + delay + 2 < len(dataset))
        np.testing.assert_array_equal(step.truncated, (age == 5) | ~usable)
        ended = step.truncated
        np.testing.assert_array_equal(step.final_observations[:, :-3], dataset.states[row[ended] + 1])
        np.testing.assert_array_equal(step.final_observations[:, -1], np.ones(ended.sum()))
        np.testing.assert_array_equal(env.held[ended], np.ones(ended.sum()))
        age[ended], segment = 0, dataset.segment[env.rows]


def test_the_generator_decides_the_starts_and_a_state_goes_on_where_it_was(learnable_split: Split) -> None:
    dataset = learnable_split()
    one, two, other = make(dataset, seed=1), make(dataset, seed=1), make(dataset, seed=2)
    np.testing.assert_array_equal(one.reset(), two.reset())
    assert not np.array_equal(other.reset(), one.observe())
    actions = np.random.default_rng(0).integers(3, size=(30, 7))
    for taken in actions[:10]:
        one.step(taken)
    resumed = make(dataset)
    resumed.restore(one.state())
    resumed.generator.bit_generator.state = one.generator.bit_generator.state
    for taken in actions[10:]:
        for left, right in zip(one.step(taken), resumed.step(taken), strict=True):
            np.testing.assert_array_equal(left, right)


def test_observations_written_into_an_array_are_the_same(learnable_split: Split) -> None:
    one, two = make(learnable_split()), make(learnable_split())
    out = np.empty_like(one.reset())
    two.reset()
    for _ in range(15):
        step = one.step(np.zeros(7, dtype=int), out=out)
        assert step.observations is out
        np.testing.assert_array_equal(out, two.step(np.zeros(7, dtype=int)).observations)
    with pytest.raises(ValueError, match="C-contiguous"):
        one.observe(np.empty((7, 14), dtype=np.float32)[:, ::2])


def test_what_cannot_be_stepped_is_refused(learnable_split: Split) -> None:
    dataset = learnable_split()
    env = make(dataset)
    env.reset()
    for actions, message in (
        ([1], r"one per copy \(7,\)"),
        ([0, 1, 2, 3, 0, 0, 0], r"got \[3\]"),
        ([0, -1, 2, 0, 0, 0, 0], r"got \[-1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    with pytest.raises(ValueError, match="num_envs=0"):
        make(dataset, num_envs=0)
    with pytest.raises(MarketDataError, match="no row of ETH can be traded"):
        make(dataset.rows(slice(0, 1)))
    with pytest.raises(ValueError, match="'held' for 7 copies"):
        env.restore({"row": env.rows, "end": env.rows})
    for wrong in ({"held": np.full(7, 3)}, {"row": env.state()["end"] + 1}):
        with pytest.raises(ValueError, match="up to their episodes' ends"):
            env.restore({**env.state(), **wrong})
    with pytest.raises(ValueError, match="rows outside"):
        make(dataset.rows(slice(0, 5))).restore({**env.state(), "end": np.full(7, 5)})


def test_the_reward_table_is_zero_where_nothing_can_be_traded(learnable_split: Split) -> None:
    dataset = replace(learnable_split(segments=(5, 4)), execution_delay_bars=1)
    table = reward_table(dataset)
    assert table.usable.tolist() == [True, True, True, False, False, True, True, False, False]
    assert not table.percent[~table.usable].any()
    assert table.percent[table.usable].all(axis=0)[[0, 2], [2, 0]].all()
