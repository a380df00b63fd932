"""A bundle in the event-driven engine earns what the evaluation's ledger says for the same actions."""

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BacktestEngine, decide, replay, spot_instrument, swap_instrument
from archetype_dagster.deployment import OnnxPolicyStrategy
from archetype_dagster.errors import ArtifactError
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
