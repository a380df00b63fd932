import gymnasium as gym
import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.engine.instruments import spot_instrument, swap_instrument
from archetype_dagster.envs import BacktestEnv, BacktestVectorEnv, BatchedTradingVectorEnv, MultiLegBacktestEnv
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings

LEGS = [(spot_instrument("BTC", "USDT"), 1.0), (swap_instrument("BTC", "USDT"), 2.0)]


@pytest.mark.parametrize("delay", [0, 1])
def test_every_copy_is_the_single_environment(bars: pl.DataFrame, delay: int) -> None:
    settings = EnvironmentSettings(episode_bars=12, lookback_bars=2)
    execution = ExecutionSettings(execution_delay_bars=delay)
    many = gym.make_vec(
        "archetype/BacktestEnv-v0", num_envs=5, vectorization_mode="vector_entry_point",
        data=bars, settings=settings, execution=execution,
    )  # fmt: skip
    seen, info = many.reset(seed=4)
    singles = [BacktestEnv(bars, settings=settings, execution=execution) for _ in range(5)]
    for copy, single in enumerate(singles):
        np.testing.assert_array_equal(single.reset(options={"start": info["row"][copy]})[0], seen[copy])
    many.action_space.seed(0)
    for count in range(30):
        actions = many.action_space.sample()
        seen, rewards, terminated, truncated, info = many.step(actions)
        for copy, single in enumerate(singles):
            observation, reward, *ends, told = single.step(actions[copy])
            assert (reward, ends) == (rewards[copy], [terminated[copy], truncated[copy]])
            if any(ends):
                np.testing.assert_array_equal(info["final_obs"][copy], observation)
                observation, told = single.reset(options={"start": info["row"][copy]})
            else:
                assert told["net_value"] == info["net_value"][copy]
            np.testing.assert_array_equal(seen[copy], observation)
        assert truncated.all() == (count % 12 == 11)


def test_several_legs_step_together(bars: pl.DataFrame) -> None:
    settings = EnvironmentSettings(actions="discrete", starts="first")
    many = gym.make_vec(
        "archetype/MultiLegBacktestEnv-v0", num_envs=3, vectorization_mode="vector_entry_point",
        legs=LEGS, settings=settings,
    )  # fmt: skip
    single = MultiLegBacktestEnv(LEGS, settings=settings)
    single.reset()
    many.reset(seed=0)
    for action in ([2, 0], [1, 1], [0, 2]):
        seen, rewards, *_ = many.step(np.array([action, [1, 1], [0, 0]]))
        observation, reward, *_ = single.step(np.array(action))
        np.testing.assert_array_equal(seen[0], observation)
        assert rewards[0] == reward
        assert len(set(rewards)) == 3 or action == [1, 1]


def test_the_seed_decides_and_wrong_actions_change_nothing(bars: pl.DataFrame) -> None:
    one, two = (BacktestVectorEnv(4, bars, settings=EnvironmentSettings(episode_bars=9)) for _ in range(2))
    np.testing.assert_array_equal(one.reset(seed=1)[0], two.reset(seed=1)[0])
    assert set(one.reset(seed=2)[1]["row"]) != set(one.reset(seed=3)[1]["row"])
    before = one.portfolio.row.copy()
    for wrong in (np.zeros(4), np.full((4, 1), np.nan), np.zeros((3, 1))):
        with pytest.raises(ValueError, match="actions must"):
            one.step(wrong)
    np.testing.assert_array_equal(one.portfolio.row, before)
    with pytest.raises(ValueError, match="options"):
        one.reset(options={"rows": 1})
    assert one.reset(options={"start": 5})[1]["row"].tolist() == [5] * 4
    with pytest.raises(ValueError, match="num_envs=0"):
        BacktestVectorEnv(0, bars)


def test_ruined_copies_terminate_and_begin_anew(bars: pl.DataFrame) -> None:
    env = BacktestVectorEnv(3, bars, execution=ExecutionSettings(initial_capital=50.0))
    env.reset(seed=0)
    seen, _, terminated, truncated, info = env.step(np.array([[1.0], [0.0], [-1.0]]))
    assert terminated.tolist() == info["_final_obs"].tolist() == [True, False, True]
    assert not truncated.any()
    np.testing.assert_array_equal(seen[[0, 2], -2:], [[1, 0], [1, 0]])
    assert info["final_obs"][0, -1] == 1


def test_the_batched_core_has_gymnasiums_vector_form(learnable_split: object) -> None:
    env = gym.make_vec(
        "archetype/BatchedTradingEnv-v0", num_envs=6, vectorization_mode="vector_entry_point",
        dataset=learnable_split(), episode_bars=4,
    )  # fmt: skip
    one, _ = env.reset(seed=5)
    np.testing.assert_array_equal(env.reset(seed=5)[0], one)
    assert not np.array_equal(env.reset(seed=6)[0], one)
    for _ in range(4):
        seen, rewards, terminated, truncated, info = env.step(np.full(6, 2))
        assert seen in env.observation_space
    assert truncated.all()
    assert not terminated.any()
    assert (rewards != 0).all()
    np.testing.assert_array_equal(info["final_obs"][:, -3:], np.tile([0, 0, 1], (6, 1)))
    np.testing.assert_array_equal(seen[:, -3:], np.tile([0, 1, 0], (6, 1)))
    with pytest.raises(ValueError, match="no options"):
        env.reset(options={"start": 1})
    assert BatchedTradingVectorEnv(2).reset(seed=0)[0].shape == (2, 48)
