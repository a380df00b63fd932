"""A bundle in the event-driven engine earns what the evaluation's ledger says for the same actions."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BacktestEngine, decide, replay, spot_instrument, swap_instrument
from archetype_dagster.deployment import OnnxPolicyStrategy
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.types import FLAT

SPOT = spot_instrument("ETH", "USDT")
CAPITAL = 1e6


def run(strategy, market, settings):
    engine = BacktestEngine(CAPITAL, execution=settings.execution)
    engine.add(SPOT, market.bars, liquidity_scale=settings.pair("ETH").liquidity_scale)
    return engine.run(strategy)


@pytest.mark.parametrize(("override", "delay"), [("step", 0), ("hold", 1)])
def test_net_value_and_fills_are_the_ledgers(
    bundle, resealed, make_policy, market, dataset_of, tmp_path, override, delay
):
    policy = make_policy(**{"refinement.override": override, "execution.execution_delay_bars": delay})
    settings, dataset = policy.settings, dataset_of(policy.settings)
    actions = np.full(market.bars.height, FLAT, dtype=np.int8)
    ends = market.bars["timestamp"].dt.replace_time_zone(None).to_numpy()
    actions[np.searchsorted(ends, dataset.timestamps)] = decide(policy, dataset).actions
    ledger = replay(actions, market.bars, pair="ETH", initial_capital=CAPITAL, settings=settings.execution)

    strategy = OnnxPolicyStrategy(resealed(bundle, tmp_path, override=override, execution_delay_bars=delay), [SPOT])
    result = run(strategy, market, settings)
    assert set(actions) == {0, 1, 2}
    np.testing.assert_array_equal(result.positions["position"], ledger.position)
    np.testing.assert_allclose(result.bars["net_value"], ledger.net_value, rtol=1e-9)
    traded = pl.Series(ends[ledger.traded != 0]).cast(pl.Datetime("us", "UTC"))
    assert result.fills["timestamp"].to_list() == traded.to_list()
    fees = result.fills["fee"].to_numpy(), ledger.fee[ledger.traded != 0]
    np.testing.assert_allclose(*fees, rtol=1e-9)
    assert run(strategy, market, settings).bars.equals(result.bars), "a second run starts without memory of the first"


def test_a_settled_horizon_closes_before_it_trades(bundle, resealed, make_policy, market, tmp_path):
    settings = make_policy(**{"execution.horizon_boundary": "settle"}).settings
    result = run(OnnxPolicyStrategy(resealed(bundle, tmp_path, horizon_boundary="settle")), market, settings)
    closings = result.fills.filter((pl.col("tag") == "") & (pl.col("position") == 0.0))
    reopened = result.fills.filter(pl.col("tag").str.ends_with(" tau 0"))
    assert closings.height
    assert set(reopened["timestamp"]) & set(closings["timestamp"])


def test_predict_gives_an_action_for_each_bar_and_is_flat_while_features_warm_up(bundle, rows):
    strategy = OnnxPolicyStrategy(bundle)
    predicted = [strategy.predict(row) for row in rows[:100]]
    assert predicted[:60] == [FLAT] * 60
    strategy.policy.reset()
    decided = [strategy.policy.on_bar(row) for row in rows[:100]]
    assert predicted[60:] == [one.action for one in decided[60:]]


def spaced(bars, minutes):
    """The same bars as if each were so long."""
    first = bars["timestamp"][0]
    ends = [first + timedelta(minutes=minutes * number) for number in range(bars.height)]
    return bars.with_columns(pl.Series("timestamp", ends, dtype=bars.schema["timestamp"]), segment=pl.lit(0, pl.Int32))


@pytest.mark.parametrize(
    ("minutes", "reason"),
    [
        (5, r"bars must be 0:10:00 long as the bundle's are, got .* only 0:05:00 after the last"),
        (15, "got 60 in a row after a gap, the last of 0:15:00"),
        (60, "got 60 in a row after a gap, the last of 1:00:00"),
    ],
)
def test_bars_of_another_length_are_refused_instead_of_leaving_it_flat(bundle, market, make_policy, minutes, reason):
    bars = spaced(market.bars.head(120), minutes)
    engine = BacktestEngine(CAPITAL, execution=make_policy().settings.execution)
    engine.add(SPOT, bars)
    strategy = OnnxPolicyStrategy(bundle)
    with pytest.raises(MarketDataError, match=reason):
        engine.run(strategy)
    alone = OnnxPolicyStrategy(bundle)
    with pytest.raises(MarketDataError, match=reason):
        [alone.predict(row) for row in bars.iter_rows(named=True)]


def test_a_bar_off_the_grid_is_refused_and_changes_nothing(bundle, rows):
    strategy, undisturbed = OnnxPolicyStrategy(bundle), OnnxPolicyStrategy(bundle)
    for row in rows[:70]:
        strategy.predict(row)
        undisturbed.predict(row)
    early = {**rows[70], "timestamp": rows[70]["timestamp"] - timedelta(minutes=1)}
    with pytest.raises(MarketDataError, match="only 0:09:00 after the last"):
        strategy.predict(early)
    with pytest.raises(MarketDataError, match="must grow from bar to bar"):
        strategy.predict(rows[69])
    assert [strategy.predict(row) for row in rows[70:100]] == [undisturbed.predict(row) for row in rows[70:100]]


def test_legs_of_another_pair_are_refused(bundle, market, make_policy):
    with pytest.raises(ArtifactError, match="the bundle trades ETH-USDT, the leg is BTC-USDT"):
        OnnxPolicyStrategy(bundle, [spot_instrument("BTC", "USDT")])
    with pytest.raises(ValueError, match="trades one leg, got 2"):
        OnnxPolicyStrategy(bundle, [SPOT, swap_instrument("ETH", "USDT")])
    engine = BacktestEngine(CAPITAL, execution=make_policy().settings.execution)
    engine.add(spot_instrument("DOT", "USDT"), market.bars)
    with pytest.raises(ArtifactError, match="the leg is DOT-USDT"):
        engine.run(OnnxPolicyStrategy(bundle))
    late = BacktestEngine(CAPITAL, execution=make_policy(**{"execution.execution_delay_bars": 1}).settings.execution)
    late.add(SPOT, market.bars)
    with pytest.raises(ArtifactError, match="judged with execution_delay_bars=0, the engine has 1"):
        late.run(OnnxPolicyStrategy(bundle))
    with pytest.raises(ValueError, match="provider NoProvider is not available"):
        OnnxPolicyStrategy(bundle, providers=("NoProvider",))
