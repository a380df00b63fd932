"""Target positions on real prices: the engine keeps the ledger that the vectorised replay keeps."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BacktestEngine, replay, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine.funding import funding_schedule
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.book import mark_prices, trade_cost_parts
from archetype_dagster.market.candles import bars_from_candles
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.modelled_book import add_modelled_book
from archetype_dagster.settings import ExecutionSettings, Settings

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
PAIR = Settings().pair("BTC")


def real_bars(path, start, end) -> pl.DataFrame:
    """Ten-minute bars of real candles with the modelled book."""
    first, last = (int(datetime(*day, tzinfo=UTC).timestamp() * 1000) for day in (start, end))
    candles = pl.read_parquet(path).filter(pl.col("open_time").is_between(first, last, closed="left"))
    bars = assign_segments(bars_from_candles(candles, bar_minutes=10), bar_minutes=10)
    return add_modelled_book(bars, Settings().market.modelled_book, PAIR, seed=0)


@pytest.fixture(scope="module")
def spot_bars(shared_data) -> pl.DataFrame:
    """Five days with the outage of 2021-09-29."""
    return real_bars(shared_data / "spot_5m" / "BTCUSDT.parquet", (2021, 9, 27), (2021, 10, 2))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("instrument", [SPOT, SWAP])
def test_actions_earn_what_the_replay_says(spot_bars, instrument, delay):
    assert spot_bars["segment"].n_unique() == 2
    rng = np.random.default_rng(delay)
    actions = np.repeat(rng.integers(0, 3, spot_bars.height // 2 + 1), 2)[: spot_bars.height].astype(np.int8)
    execution = ExecutionSettings(execution_delay_bars=delay)
    ledger = replay(actions, spot_bars, pair=PAIR, settings=execution, initial_capital=5e6)
    engine = BacktestEngine(5e6, execution=execution)
    engine.add(instrument, spot_bars, liquidity_scale=PAIR.liquidity_scale)
    result = engine.run_targets(PAIR.max_position * (actions - 1.0))
    tolerance = 1e-9 * ledger.initial_capital
    assert result.bars.height == len(ledger)
    np.testing.assert_array_equal(result.positions["position"], ledger.position)
    for name in ("net_value", "fee", "slippage", *(["cash"] if instrument is SPOT else [])):
        np.testing.assert_allclose(result.bars[name], getattr(ledger, name), rtol=0, atol=tolerance, err_msg=name)
    assert result.bars["reward"].sum() == pytest.approx(ledger.reward.sum(), abs=tolerance)
    parts = pl.col("price_profit") + pl.col("funding") - pl.col("fee") - pl.col("slippage")
    assert result.bars.select((pl.col("reward") - parts).abs().max()).item() < tolerance
    found, expected = result.performance().as_dict(), ledger.performance().as_dict()
    assert found == pytest.approx(expected, rel=1e-6)


def test_long_spot_and_short_perpetual_earn_the_basis_and_the_funding(shared_data):
    """Four days of real prices and settlements: nothing else is left of a hedged unit but what its trades cost."""
    window = ((2024, 3, 1), (2024, 3, 5))
    bars = [
        real_bars(shared_data / folder / name, *window)
        for folder, name in (("spot_5m", "BTCUSDT.parquet"), ("perp", "BTCUSDT_perp_5m.parquet"))
    ]
    rates = pl.read_parquet(shared_data / "perp" / "BTCUSDT_funding_8h.parquet")
    size, rate = 3.0, 0.0004
    engine = BacktestEngine(1e6, execution=ExecutionSettings(commission_rate=rate))
    engine.add(SPOT, bars[0])
    engine.add(SWAP, bars[1], funding=rates)
    count = bars[0].height
    wanted = np.full((count, 2), (size, -size))
    wanted[-1] = 0.0
    result = engine.run_targets(wanted)

    marks = [mark_prices(leg) for leg in bars]
    costs = [
        sum(trade_cost_parts(leg, max_position=size, commission_rate=rate, impact_curve=ImpactCurve.default()))
        for leg in bars
    ]
    paid = costs[0][0, 1, 2] + costs[0][-1, 2, 1] + costs[1][0, 1, 0] + costs[1][-1, 0, 1]
    schedule = funding_schedule(rates)
    times = bars[1]["timestamp"].dt.epoch("us").to_numpy()
    rows = np.searchsorted(times, schedule.times)
    held = (schedule.times > times[0]) & (schedule.times <= times[-1])
    received = size * marks[1][rows[held]] * schedule.rates[held]
    basis = [spot - perp for spot, perp in zip(*marks, strict=True)]

    assert held.sum() == 12
    assert result.funding["amount"].to_list() == pytest.approx(received.tolist(), rel=1e-9)
    assert result.funding["amount"].sum() > 0
    earned = size * (basis[-1] - basis[0]) + received.sum() - paid
    assert result.bars["net_value"][-1] - 1e6 == pytest.approx(earned, abs=1e-9 * 1e6)
    assert result.bars["cash"][-1] == pytest.approx(result.bars["net_value"][-1], abs=1e-6)
    gross = result.bars["net_value"].to_numpy() - size * (np.array(basis) - basis[0]) - result.bars["funding"].cum_sum()
    np.testing.assert_allclose(gross[:-1], gross[0], rtol=0, atol=1e-3 * size)


def test_exposure_never_exceeds_what_is_stated(engine_on):
    """Short proceeds buy nothing more: targets that alternate between 1 and -1 never hold more than 1."""
    engine = engine_on(np.full(20, 100.0), risk={"max_position": 1.0})
    result = engine.run_targets([1.0, -1.0] * 10)
    assert result.positions["position"].abs().max() == 1.0
    assert result.fills.height == 20
    refused = engine.run_targets([2.0, -2.0] * 10)
    assert refused.fills.height == 0
    assert set(refused.rejections["reason"]) == {"max_position"}


@pytest.mark.parametrize(
    ("targets", "rule"),
    [
        ([1.0], "one a bar and leg"),
        ([1.0, np.nan], "finite"),
        ({}, "legs BTC-USDT"),
        ([[1.0], [1.0], [1.0]], "one a bar"),
    ],
)
def test_targets_that_are_none_are_refused(engine_on, targets, rule):
    with pytest.raises(ValueError, match=rule):
        engine_on([100, 100]).run_targets(targets)
