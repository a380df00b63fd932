from collections.abc import Callable

import numpy as np
import pytest

from archetype_dagster.envs import BatchedTradingEnv, LookbackWindows
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.market.dataset import MarketDataset

Split = Callable[..., MarketDataset]


def make(dataset: MarketDataset, lookback: int | None) -> TradingVecEnv:
    core = BatchedTradingEnv(dataset, num_envs=6, episode_bars=5, generator=np.random.default_rng(0))
    return TradingVecEnv(core, lookback)


@pytest.mark.parametrize("lookback", [None, 3])
def test_every_end_is_a_truncation_with_the_observation_to_bootstrap_from(
    learnable_split: Split, lookback: int | None
) -> None:
    dataset = learnable_split(segments=(20, 15))
    env = make(dataset, lookback)
    env.reset()
    ends = 0
    for _ in range(20):
        row = env.core.rows
        seen, rewards, dones, infos = env.step(np.zeros(6, dtype=np.int64))
        assert env.observation_space.shape == seen.shape[1:]
        np.testing.assert_array_equal(seen, env.observe())
        assert np.isfinite(rewards).all()
        for copy, info in enumerate(infos):
            assert bool(info) == dones[copy]
            if info:
                assert info["TimeLimit.truncated"] is True
                following = np.array([row[copy] + 1])
                state = dataset.states[following]
                market = state if lookback is None else LookbackWindows(dataset, lookback).at(following)
                np.testing.assert_array_equal(info["terminal_observation"], [*market.ravel(), 1.0, 0.0, 0.0])
                ends += 1
    assert ends >= 6 * 3


def test_the_copies_have_no_attributes_of_their_own(learnable_split: Split) -> None:
    env = make(learnable_split(), None)
    assert env.get_attr("episode_bars", [0, 2]) == [5, 5]
    assert env.env_is_wrapped(object) == [False] * 6
    for refused in (
        lambda: env.set_attr("episode_bars", 3),
        lambda: env.env_method("reset"),
        lambda: env.seed(0),
    ):
        with pytest.raises(AttributeError):
            refused()
