import numpy as np
import polars as pl

from archetype_dagster.envs import BacktestVectorEnv
from archetype_dagster.envs.sb3 import PortfolioVecEnv
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings


def test_truncation_is_bootstrapped_and_ruin_is_not(bars: pl.DataFrame) -> None:
    market = BacktestVectorEnv(
        3, bars, settings=EnvironmentSettings(episode_bars=2), execution=ExecutionSettings(initial_capital=50.0)
    )
    env = PortfolioVecEnv(market)
    assert env.seed(3) == [3] * 3
    first = env.reset()
    np.testing.assert_array_equal(first, market.reset(seed=3)[0])
    env.reset()
    _, _, ends, infos = env.step(np.array([[1.0], [0.0], [0.0]]))
    assert ends.tolist() == [True, False, False]
    assert infos[0]["TimeLimit.truncated"] is False
    assert infos[1:] == [{}, {}]
    seen, rewards, ends, infos = env.step(np.zeros((3, 1)))
    assert ends.tolist() == [False, True, True]
    assert [info.get("TimeLimit.truncated") for info in infos] == [None, True, True]
    assert not np.array_equal(infos[1]["terminal_observation"], seen[1])
    assert rewards.tolist() == [0.0] * 3
