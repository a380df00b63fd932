"""What the four environments on plain prices promise alike."""

from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_for_sb3

from archetype_dagster.envs import (
    HistoryEnv,
    MarketMakingEnv,
    OptimalExecutionEnv,
    PortfolioAllocationEnv,
    StockTradingEnv,
    generated_prices,
)
from archetype_dagster.errors import MarketDataError
from archetype_dagster.settings import (
    MarketMakingSettings,
    OptimalExecutionSettings,
    PortfolioAllocationSettings,
    PricePathSettings,
    StockTradingSettings,
)

KINDS: list[tuple[type[HistoryEnv], Any, int]] = [
    (StockTradingEnv, StockTradingSettings(episode_bars=None), 3),
    (PortfolioAllocationEnv, PortfolioAllocationSettings(episode_bars=None), 3),
    (MarketMakingEnv, MarketMakingSettings(episode_bars=None, inventory_limit=100), 1),
    (OptimalExecutionEnv, OptimalExecutionSettings(horizon_bars=80), 1),
]
alike = pytest.mark.parametrize(("kind", "settings", "assets"), KINDS, ids=[kind.__name__ for kind, _, _ in KINDS])


def prices(assets: int, bars: int = 200) -> pl.DataFrame:
    return generated_prices(PricePathSettings(assets=assets, bars=bars))


def made(kind: type[HistoryEnv], settings: Any, data: pl.DataFrame, **changes: object) -> HistoryEnv:
    return kind(data, settings=settings.model_copy(update=changes))


def played(env: HistoryEnv, seed: int = 0) -> list[tuple]:
    """Every step of an episode of random actions, the reset first."""
    generator = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(generator.uniform(-1, 0.2, env.action_space.shape)))
    return steps


@pytest.mark.filterwarnings("error")
@alike
def test_both_checkers_find_nothing_in_what_is_made_from_nothing(
    kind: type[HistoryEnv], settings: Any, assets: int
) -> None:
    env = gym.make(f"archetype/{kind.__name__}-v0").unwrapped
    assert type(env) is kind
    check_env(env, skip_render_check=True)
    check_for_sb3(env)


@alike
def test_no_number_of_an_observation_is_constant(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    env = made(kind, settings, prices(assets), lookback_bars=3)
    observations = np.array([step[0] for step in played(env)])
    assert observations.shape[1] == len(env.observation_names) == len(set(env.observation_names))
    assert (observations.std(axis=0) > 0).all()


@alike
def test_the_window_is_the_last_bars_oldest_first(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    data = prices(assets)
    one, three = (played(made(kind, settings, data, lookback_bars=bars, starts="first")) for bars in (1, 3))
    # A longer window starts later; from the third step on all of it has been seen bar by bar.
    env = made(kind, settings, data, lookback_bars=3)
    env.reset(options={"start": three[0][4]["row"]})
    newest = {step[4]["row"]: step[0][-len(env.bar_features) :] for step in three}
    for step in three[2:]:
        window = step[0].reshape(3, -1)
        np.testing.assert_array_equal(window, [newest[step[4]["row"] - age] for age in (2, 1, 0)])
    market = sum("return" in name or "trend" in name or "volatility" in name for name in env.bar_features)
    shown = {step[4]["row"]: step[0][:market] for step in one}
    first = three[0][0].reshape(3, -1)[:, :market]
    np.testing.assert_array_equal(first, [shown[three[0][4]["row"] - age] for age in (2, 1, 0)])


@alike
def test_other_future_rows_change_no_past_observation(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    data, cut = prices(assets), 100
    order = np.append(np.arange(cut), np.random.default_rng(1).permutation(np.arange(cut, data.height)))
    other = data.with_columns(data[order].drop("timestamp"))
    one, two = (played(made(kind, settings, frame, lookback_bars=4, starts="first")) for frame in (data, other))
    rows = [step[4]["row"] for step in one]
    assert sum(row < cut for row in rows) > 20
    for row, left, right in zip(rows, one, two, strict=False):
        if row < cut:
            assert left[0].tobytes() == right[0].tobytes()
            assert left[1:4] == right[1:4]
    assert one[rows.index(cut)][0].tobytes() != two[rows.index(cut)][0].tobytes()


@alike
def test_the_seed_decides_every_bit(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    data = prices(assets)
    one, two = (played(made(kind, settings, data), seed=5) for _ in range(2))
    assert [step[0].tobytes() for step in one] == [step[0].tobytes() for step in two]
    assert [step[1:4] for step in one] == [step[1:4] for step in two]
    starts = {kind(data, settings=settings, seed=seed).reset()[1]["row"] for seed in range(10)}
    assert len(starts) > 3


@alike
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.5])
def test_actions_that_are_no_numbers_or_out_of_range_are_refused(
    kind: type[HistoryEnv], settings: Any, assets: int, value: float
) -> None:
    env = made(kind, settings, prices(assets))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"-1\.\.1"):
        env.step(np.full(env.action_space.shape, value))


@alike
def test_wrong_shapes_options_starts_and_names_are_refused(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    env = made(kind, settings, prices(assets))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(env.action_space.shape))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(env.action_space.shape[0] + 1))
    with pytest.raises(ValueError, match="options"):
        env.reset(options={"row": 100})
    with pytest.raises(ValueError, match="start"):
        env.reset(options={"start": 3})
    with pytest.raises(ValueError, match="baseline must be one of"):
        env.baseline_action("luck")


@alike
def test_the_end_of_the_data_truncates_and_that_of_a_segment_too(
    kind: type[HistoryEnv], settings: Any, assets: int
) -> None:
    data = prices(assets, 300).with_columns(segment=(pl.int_range(300) >= 160).cast(pl.Int32))
    env = made(kind, settings, data, starts="first", **({"horizon_bars": 90} if kind is OptimalExecutionEnv else {}))
    last = played(env)[-1]
    if kind is OptimalExecutionEnv:
        assert last[2:4] == (True, False)
        assert last[4]["row"] <= 159
    else:
        assert last[2:4] == (False, True)
        assert last[4]["row"] == 159
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(env.action_space.shape))


@alike
def test_too_few_rows_are_refused(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    with pytest.raises(MarketDataError, match="none of 20 rows"):
        kind(prices(assets, 20), settings=settings)


@alike
def test_a_built_in_policy_is_an_action(kind: type[HistoryEnv], settings: Any, assets: int) -> None:
    env = made(kind, settings, prices(assets))
    env.reset(seed=0)
    for name in env.baselines:
        action = env.baseline_action(name)
        assert action.shape == env.action_space.shape
        assert (np.abs(action) <= 1).all()
    np.testing.assert_array_equal(env.baseline_action(), env.baseline_action(env.baselines[0]))
