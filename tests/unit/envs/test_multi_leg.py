from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_for_sb3

from archetype_dagster.backtest.engine.instruments import spot_instrument, swap_instrument
from archetype_dagster.envs import BacktestEnv, MultiLegBacktestEnv
from archetype_dagster.envs.sources import embedded_legs
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import load_bars
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.book import mark_prices, trade_costs
from archetype_dagster.settings import EnvironmentSettings, ExecutionSettings, MarketSettings

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
FROM_FIRST = EnvironmentSettings(starts="first", episode_bars=None)
RAW = FROM_FIRST.model_copy(update={"units": "raw"})


def act(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@cache
def tables(rows: int = 300) -> tuple[list[pl.DataFrame], dict[str, pl.DataFrame]]:
    bars, funding = embedded_legs([SPOT, SWAP])
    return [table[:rows] for table in bars], funding


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("actions", ["continuous", "discrete"])
def test_both_checkers_find_nothing(actions: str) -> None:
    env = gym.make(
        "archetype/MultiLegBacktestEnv-v0",
        legs=[(SPOT, 1.0), (SWAP, 1.0)],
        data=tables()[0],
        settings=EnvironmentSettings(actions=actions),
    ).unwrapped
    check_env(env, skip_render_check=True)
    check_for_sb3(env)


def test_spot_against_the_swap_earns_basis_and_funding_on_real_prices(shared_data: Path, tmp_path: Path) -> None:
    span = [int(datetime(2024, 3, day, tzinfo=UTC).timestamp() * 1000) for day in (1, 4)]
    bars = []
    for file in ("spot_5m/BTCUSDT.parquet", "perp/BTCUSDT_perp_5m.parquet"):
        candles = pl.read_parquet(shared_data / file)
        path = tmp_path / Path(file).name
        candles.filter(pl.col("open_time").is_between(*span, closed="left")).write_parquet(path)
        bars.append(load_bars(MarketSettings(source="candles", path=path, bar_minutes=5), "BTC"))
    spot, perp = bars
    funding = pl.read_parquet(shared_data / "perp/BTCUSDT_funding_8h.parquet")
    size = 0.5
    env = MultiLegBacktestEnv(
        [(SPOT, size), (SWAP, size)], data=[spot, perp], funding={SWAP.symbol: funding}, settings=FROM_FIRST
    )
    _, info = env.reset()
    capital = info["net_value"]
    steps = [env.step(act(1, -1)) for _ in range(len(spot) - 1)]
    assert steps[-1][3]
    marks = [mark_prices(table) for table in (spot, perp)]
    entry = [
        trade_costs(table, max_position=size, commission_rate=0.0002)[0, 1, side]
        for table, side in zip((spot, perp), (2, 0), strict=True)
    ]
    ends = spot["timestamp"].dt.epoch("ms").to_numpy()
    basis = size * ((marks[0] - marks[0][0]) - (marks[1] - marks[1][0]))
    received, settlements = np.zeros(len(ends)), 0
    for time, rate in funding.iter_rows():
        if ends[0] < time <= ends[-1]:
            row = int(np.flatnonzero(ends == time)[0])
            received[row] += size * rate * marks[1][row]
            settlements += 1
    expected = capital + basis - sum(entry) + np.cumsum(received)
    assert settlements == 9
    assert received.sum() > 10
    net_value = np.array([step[4]["net_value"] for step in steps])
    np.testing.assert_allclose(net_value, expected[1:], rtol=1e-9)
    paid = np.array([step[4]["funding"] for step in steps])
    np.testing.assert_allclose(-paid, received[1:], atol=1e-9)


def test_funding_is_paid_on_the_position_held_into_the_settlement() -> None:
    bars, _ = tables(8)
    settled = bars[1]["timestamp"][3]
    funding = pl.DataFrame({"timestamp": [settled, bars[1]["timestamp"][5]], "rate": [0.01, -0.02]})
    mark = mark_prices(bars[1])
    env = MultiLegBacktestEnv(
        [(SPOT, 1.0), (SWAP, 2.0)], data=bars, funding={SWAP.symbol: funding}, settings=FROM_FIRST
    )
    env.reset()
    # Long into the first settlement and flat at the very bar of it, short into the second.
    paid = [env.step(act(0, target))[4]["funding"] for target in (0, 1, 1, 0, -0.5, -0.5, 0)]
    np.testing.assert_allclose(paid, [0, 0, 2 * 0.01 * mark[3], 0, 1 * 0.02 * mark[5], 0, 0], atol=1e-9)


def test_other_future_rows_and_settlements_change_no_past_observation() -> None:
    bars, funding = tables(160)
    cut = 90
    order = np.random.default_rng(1).permutation(np.arange(cut, 160))
    kept = ["timestamp", "segment", "book_source"]
    mixed = [pl.concat([leg[kept], leg[[*range(cut), *order]].drop(kept)], how="horizontal") for leg in bars]
    known = pl.col("timestamp") < bars[1]["timestamp"][cut]
    rates = {name: table.with_columns(pl.when(known).then("rate").otherwise(0.01)) for name, table in funding.items()}
    plan = np.random.default_rng(2).uniform(-1, 1, (159, 2)).astype(np.float32)
    shown = FROM_FIRST.model_copy(update={"lookback_bars": 3})
    seen = []
    for data, settled in ((bars, funding), (mixed, rates)):
        env = MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=data, funding=settled, settings=shown)
        seen.append(np.stack([env.reset()[0], *(env.step(action)[0] for action in plan)]))
    np.testing.assert_array_equal(seen[0][:cut], seen[1][:cut])
    assert (seen[0][cut + 1] != seen[1][cut + 1]).any()


def test_each_leg_trades_as_it_would_alone() -> None:
    bars, _ = tables()
    pair = MultiLegBacktestEnv([(SPOT, 8.0), (SWAP, 1.0)], data=bars, settings=FROM_FIRST)
    alone = BacktestEnv(bars[0], pair="BTC", settings=FROM_FIRST)
    first, single = pair.reset()[0], alone.reset()[0]
    size = len(alone.observation_names)
    rng = np.random.default_rng(0)
    for _ in range(200):
        np.testing.assert_array_equal(first[:size], single)
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        first, single = pair.step(action)[0], alone.step(action[:1])[0]


def test_observations_name_each_legs_price_funding_and_basis() -> None:
    bars, funding = tables(60)
    env = MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=bars, funding=funding, settings=RAW)
    assert env.observation_names == (
        "BTC-USDT.mid_price", "BTC-USDT.volume", "BTC-USDT.cash", "BTC-USDT.position",
        "BTC-USDT-SWAP.mid_price", "BTC-USDT-SWAP.volume", "BTC-USDT-SWAP.funding_rate",
        "BTC-USDT-SWAP.basis_bps", "BTC-USDT-SWAP.cash", "BTC-USDT-SWAP.position",
    )  # fmt: skip
    marks = [mark_prices(table) for table in bars]
    env.reset()
    for row in range(1, 60):
        seen = dict(zip(env.observation_names, env.step(act(0.5, -0.25))[0].tolist(), strict=True))
        assert seen["BTC-USDT-SWAP.mid_price"] == pytest.approx(marks[1][row], rel=1e-6)
        assert seen["BTC-USDT-SWAP.basis_bps"] == pytest.approx(1e4 * (marks[1][row] / marks[0][row] - 1), abs=1e-4)
        known = funding[SWAP.symbol].filter(pl.col("timestamp") <= bars[1]["timestamp"][row])
        assert seen["BTC-USDT-SWAP.funding_rate"] == pytest.approx(known["rate"][-1] if known.height else 0.0)
        assert (seen["BTC-USDT.position"], seen["BTC-USDT-SWAP.position"]) == (0.5, -0.25)


def test_legs_share_the_rows_that_all_of_them_have() -> None:
    bars, _ = tables(100)
    holed = assign_segments(pl.concat([bars[1][10:40], bars[1][41:]]), bar_minutes=10)
    env = MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=[bars[0], holed], settings=FROM_FIRST)
    assert len(env.portfolio.mark) == 89
    spot, swap = env.portfolio.legs
    np.testing.assert_array_equal(spot.timestamps, swap.timestamps)
    assert spot.segment.tolist() == [0] * 30 + [1] * 59
    np.testing.assert_array_equal(spot.mark, np.delete(mark_prices(bars[0])[10:], 30))
    with pytest.raises(MarketDataError, match="0 bar ends in common"):
        MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=[bars[0][:40], bars[1][40:]])


def test_three_legs_and_funding_over_a_gap_add_up() -> None:
    legs = [(SPOT, 1.0), (SWAP, 1.0), (spot_instrument("ETH", "USDT"), 10.0)]
    env = MultiLegBacktestEnv(legs, settings=FROM_FIRST, execution=ExecutionSettings(initial_capital=1e5))
    _, info = env.reset()
    assert info["net_value"] == pytest.approx(1e5)
    assert env.action_space.shape == (3,)
    rng, rewards, paid, value = np.random.default_rng(0), 0.0, 0.0, 0.0
    for _ in range(len(env.portfolio.mark) - 1):
        _, reward, _, _, info = env.step(rng.uniform(-1, 1, 3).astype(np.float32))
        rewards, paid, value = rewards + reward, paid + info["funding"], info["net_value"]
    assert value == pytest.approx(1e5 * (1 + rewards), rel=1e-9)
    assert paid != 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"legs": [(SPOT, 1.0)]}, "two or three, got 1"),
        ({"legs": [(SPOT, 1.0), (SPOT, 2.0)]}, "different instruments"),
        ({"legs": [(SPOT, 1.0), (swap_instrument("BTC", "USD", "coin_margin"), 1.0)]}, "coin-margined"),
        ({"legs": [(SPOT, -1.0), (SWAP, 1.0)]}, "unit=-1.0 for BTC-USDT"),
        ({"funding": {}}, "brings its own funding"),
        ({"data": []}, "each of 2 legs, got 0"),
    ],
)
def test_legs_that_mean_nothing_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiLegBacktestEnv(**{"legs": [(SPOT, 1.0), (SWAP, 1.0)], **changes})
    bars, _ = tables(10)
    with pytest.raises(ValueError, match="must name swaps among the legs"):
        MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=bars, funding={SPOT.symbol: pl.DataFrame()})
    env = MultiLegBacktestEnv([(SPOT, 1.0), (SWAP, 1.0)], data=bars)
    env.reset(seed=0)
    for action in (act(1.0), act(np.nan, 0.0), act(0.0, 2.0)):
        with pytest.raises(ValueError, match="actions must"):
            env.step(action)
