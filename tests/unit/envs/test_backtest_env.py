import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_for_sb3

from archetype_dagster.backtest import price_bars, replay_priced
from archetype_dagster.backtest.engine.instruments import spot_instrument
from archetype_dagster.envs import BacktestEnv, BacktestVectorEnv
from archetype_dagster.envs.sources import EMBEDDED_MARKET
from archetype_dagster.market import MarketDataset, compute_features, load_bars
from archetype_dagster.market.book import mark_prices, order_slippage
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings, Settings, SplitSettings

FROM_FIRST = EnvironmentSettings(starts="first", episode_bars=None)
RAW = FROM_FIRST.model_copy(update={"units": "raw"})


def act(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


def played(env: BacktestEnv, targets: np.ndarray, **reset: object) -> list[tuple]:
    env.reset(**reset)
    return [env.step(act(target)) for target in targets]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changes",
    [{}, {"actions": "discrete"}, {"features": True, "lookback_bars": 3}, {"units": "raw", "starts": "first"}],
)
def test_both_checkers_find_nothing(bars: pl.DataFrame, changes: dict[str, object]) -> None:
    env = gym.make("archetype/BacktestEnv-v0", data=bars, settings=EnvironmentSettings(**changes)).unwrapped
    check_env(env, skip_render_check=True)
    check_for_sb3(env)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_plan_earns_what_its_replay_earns(bars: pl.DataFrame, delay: int) -> None:
    execution = ExecutionSettings(execution_delay_bars=delay)
    plan = np.random.default_rng(0).integers(3, size=bars.height)
    plan[-1 - delay :] = plan[-2 - delay]
    ledger = replay_priced(plan, price_bars(bars, Settings().pair("ETH"), execution), settings=execution)
    steps = played(BacktestEnv(bars, settings=FROM_FIRST, execution=execution), plan[:-1] - 1.0)
    rewards = np.array([step[1] for step in steps])
    np.testing.assert_allclose(rewards * ledger.initial_capital, ledger.reward[:-1], atol=1e-9 * ledger.initial_capital)
    np.testing.assert_allclose([step[4]["cash"][0] for step in steps], ledger.cash[:-1], rtol=1e-9)
    assert [step[4]["position"][0] for step in steps] == ledger.position[:-1].tolist()
    assert steps[-1][4]["net_value"] == pytest.approx(ledger.net_value[-1], rel=1e-9)
    assert [step[3] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert not any(step[2] for step in steps)


def test_observations_are_the_source_rows(bars: pl.DataFrame) -> None:
    settings = RAW.model_copy(update={"features": True, "lookback_bars": 3})
    env = BacktestEnv(bars, settings=settings)
    names = env.observation_names
    assert len(names) == len(set(names)) == 3 * 47 + 2
    assert names[:2] == ("mid_price[t-2]", "volume[t-2]")
    assert names[-2:] == ("cash", "position")
    features = compute_features(bars)
    rows = bars.filter(pl.col("timestamp").is_in(features["timestamp"].implode()))
    mark = mark_prices(rows)
    first = np.flatnonzero(np.diff(rows["segment"], prepend=-1))
    observation, info = env.reset()
    for row in range(rows.height - 1):
        begun = int(first[first <= row][-1])
        for age in (2, 1, 0):
            seen = max(row - age, begun)
            block = observation[(2 - age) * 47 : (3 - age) * 47]
            expected = [mark[seen], rows["volume"][seen], *features.row(seen)[1:]]
            np.testing.assert_array_equal(block, np.array(expected, dtype=np.float32))
        np.testing.assert_array_equal(observation[-2:], np.float32([info["cash"][0], info["position"][0]]))
        observation, _, _, _, info = env.step(act(np.sin(row)))


def test_relative_observations_are_percent_logarithm_and_shares(bars: pl.DataFrame) -> None:
    env = BacktestEnv(bars, settings=FROM_FIRST)
    env.reset()
    observation, _, _, _, info = env.step(act(0.5))
    mark = mark_prices(bars)
    expected = [
        100 * (mark[1] / mark[0] - 1), np.log1p(bars["volume"][1] / 100), info["cash"][0] / (100 * mark[0]), 0.5
    ]  # fmt: skip
    np.testing.assert_allclose(observation, expected, rtol=1e-5)


def test_sizes_between_the_tables_cost_the_walk_at_eighths_and_a_chord_between(bars: pl.DataFrame) -> None:
    env = BacktestEnv(bars, settings=FROM_FIRST)
    curve = ImpactCurve.default().scaled(Settings().pair("ETH").liquidity_scale)

    def cost(units: float) -> float:
        mark, losses = order_slippage(bars[:1], [100 * abs(units)], impact_curve=curve)
        return float(losses[0 if units > 0 else 1, 0, 0] + 0.0002 * 100 * abs(units) * mark[0])

    for target in (0.125, -0.625, 1.0, -1.0):
        assert played(env, np.array([target]))[0][4]["loss"] == pytest.approx(cost(target), rel=1e-12)
    between = played(env, np.array([0.3125]))[0][4]["loss"]
    assert between == pytest.approx((cost(0.25) + cost(0.375)) / 2, rel=1e-12)
    assert cost(0.3125) <= between < 1.01 * cost(0.3125)


def test_long_flat_and_short_earn_differently_and_actions_mean_the_same_in_both_spaces(bars: pl.DataFrame) -> None:
    discrete = BacktestEnv(bars, settings=FROM_FIRST.model_copy(update={"actions": "discrete"}))
    values = {}
    for action in range(3):
        discrete.reset()
        values[action] = [discrete.step(action)[4]["net_value"] for _ in range(5)]
        continuous = [step[4]["net_value"] for step in played(BacktestEnv(bars, settings=FROM_FIRST), [action - 1] * 5)]
        assert continuous == values[action]
    assert len({*map(tuple, values.values())}) == 3
    assert len(set(values[1])) == 1


def test_the_seed_decides_starts_and_bits(bars: pl.DataFrame) -> None:
    settings = EnvironmentSettings(episode_bars=20)
    plan = np.random.default_rng(0).uniform(-1, 1, 20)
    one, two = (played(BacktestEnv(bars, settings=settings), plan, seed=3) for _ in range(2))
    for left, right in zip(one, two, strict=True):
        assert left[0].tobytes() == right[0].tobytes()
        assert left[1:4] == right[1:4]
    starts = {BacktestEnv(bars, settings=settings, seed=seed).reset()[1]["row"] for seed in range(20)}
    assert len(starts) > 10
    assert max(starts) <= bars.height - 21
    assert one[-1][3]
    assert not one[-2][3]


def test_other_future_rows_change_no_past_observation(bars: pl.DataFrame) -> None:
    cut = 220
    order = np.random.default_rng(1).permutation(np.arange(cut, bars.height))
    kept = ["timestamp", "segment", "book_source"]
    other = pl.concat([bars[kept], pl.concat([bars[:cut], bars[order]]).drop(kept)], how="horizontal")
    settings = FROM_FIRST.model_copy(update={"features": True, "lookback_bars": 4})
    plan = np.random.default_rng(2).uniform(-1, 1, 130)
    one, two = (played(BacktestEnv(data, settings=settings), plan) for data in (bars, other))
    same = [left[0].tobytes() == right[0].tobytes() for left, right in zip(one, two, strict=True)]
    known = [step[4]["timestamp"] < bars["timestamp"][cut].replace(tzinfo=None) for step in one]
    assert all(equal for equal, before in zip(same, known, strict=True) if before)
    assert sum(known) > 80
    assert not all(same)


def test_no_step_is_taken_before_an_episode_or_after_its_end(bars: pl.DataFrame) -> None:
    """The kernel checks no bounds: a step beyond the last row would read whatever lies behind the table."""
    env = BacktestEnv(bars, settings=FROM_FIRST)
    with pytest.raises(gym.error.ResetNeeded, match="none has begun"):
        env.step(act(1.0))
    env.reset(options={"start": bars.height - 2})
    assert env.step(act(1.0))[3]
    with pytest.raises(gym.error.ResetNeeded, match="is over"):
        env.step(act(1.0))
    with pytest.raises(gym.error.ResetNeeded):
        BacktestVectorEnv(2, bars).step(np.zeros((2, 1)))


def test_ruin_terminates_and_is_no_truncation(bars: pl.DataFrame) -> None:
    env = BacktestEnv(bars, settings=FROM_FIRST, execution=ExecutionSettings(initial_capital=50.0))
    env.reset()
    _, reward, terminated, truncated, info = env.step(act(1.0))
    assert terminated
    assert not truncated
    assert info["net_value"] <= 0
    assert reward == pytest.approx(info["net_value"] / 50 - 1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.array([np.nan]), "got nan"),
        (np.array([1.01]), r"in -1\.\.1, got 1.01"),
        (np.array([0.0, 0.0]), r"shape \(1,\), got shape \(2,\)"),
        (0.5, r"got shape \(\)"),
    ],
)
def test_actions_that_mean_nothing_are_refused(bars: pl.DataFrame, action: object, message: str) -> None:
    env = BacktestEnv(bars)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(action)
    discrete = BacktestEnv(bars, settings=EnvironmentSettings(actions="discrete"))
    discrete.reset(seed=0)
    for wrong in (3, -1, 0.5):
        with pytest.raises(ValueError, match="actions must be"):
            discrete.step(wrong)


def test_it_is_made_from_nothing_from_a_source_and_from_tables(tmp_path: object, bars: pl.DataFrame) -> None:
    embedded = load_bars(EMBEDDED_MARKET, "ETH")
    assert len(BacktestEnv().portfolio.mark) == embedded.height
    btc = BacktestEnv(spot_instrument("BTC", "USDT"), seed=42)
    assert btc.portfolio.units.tolist() == [8.0]
    bars.drop("segment").write_parquet(tmp_path / "ETHUSDT.parquet")
    np.testing.assert_array_equal(BacktestEnv(tmp_path).portfolio.mark[:, 0], mark_prices(bars))
    ends = [bars["timestamp"][row] for row in (0, 250, 250, 300, 300, 399)]
    settings = Settings(splits=SplitSettings(**dict(zip(SplitSettings.model_fields, ends, strict=True))))
    table = build_feature_table(bars, settings, "ETH")
    shown = EnvironmentSettings(features=True, starts="first", lookback_bars=1)
    env = BacktestEnv(table, settings=shown)
    observation, _ = env.reset()
    np.testing.assert_array_equal(observation[2:-2], table.dataset(settings).states[0])
    assert env.observation_names[2] == "feature_volume"
    with pytest.raises(ValueError, match="execution_delay_bars, got 0 and 1"):
        BacktestEnv(table.dataset(settings), execution=ExecutionSettings(execution_delay_bars=1))


def test_a_dataset_prices_its_three_positions_by_its_own_table(learnable_split: object) -> None:
    dataset: MarketDataset = learnable_split()
    steps = played(BacktestEnv(dataset, settings=FROM_FIRST), np.array([1.0, -1.0, 0.0]))
    costs = [dataset.costs[0, 1, 2], dataset.costs[1, 2, 0], dataset.costs[2, 0, 1]]
    assert [step[4]["loss"] for step in steps] == costs


def test_an_episode_is_drawn_as_a_picture_and_starts_where_it_is_told(bars: pl.DataFrame) -> None:
    env = BacktestEnv(bars, render_mode="rgb_array")
    assert env.reset(options={"start": 7})[1]["row"] == 7
    blank = env.render()
    for target in (0.5, -1.0, 0.25):
        env.step(act(target))
    picture = env.render()
    assert picture.shape == (400, 640, 3)
    assert picture.dtype == np.uint8
    assert not np.array_equal(picture, blank)
    assert BacktestEnv(bars).render() is None
    for options, message in (({"start": bars.height - 1}, "must lie in 0..398"), ({"row": 1}, r"got \['row'\]")):
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
    with pytest.raises(ValueError, match="render_mode"):
        BacktestEnv(bars, render_mode="human")
