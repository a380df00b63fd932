"""Legs on one clock: bar ends that differ, gaps, funding tables and data that break a rule."""

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BacktestEngine, Order, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine.funding import funding_schedule
from archetype_dagster.errors import MarketDataError

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")


def test_legs_with_different_bar_ends_are_refused_or_walked_where_all_have_one(engine_on, book_bars):
    bars, fewer = book_bars([100, 101, 102, 103, 104]), book_bars([200, 201, 202, 203, 204])[[0, 1, 3, 4]]
    refused = engine_on(bars)
    refused.add(SWAP, fewer)
    with pytest.raises(MarketDataError, match="same bar ends, only one has 2024-01-01T00:30"):
        refused.run_targets(np.zeros((5, 2)))
    common = engine_on(bars, unequal_bars="common", delay=1)
    common.add(SWAP, fewer)
    assert common.timeline.segment.tolist() == [0, 0, 1, 1]
    result = common.run_targets(np.ones((4, 2)))
    assert result.positions.filter(pl.col("instrument") == "BTC-USDT")["position"].to_list() == [0, 1, 1, 1]
    assert result.rejections.filter(pl.col("reason") == "gap").height == 2


def test_each_leg_has_its_own_price(engine_on, book_bars):
    engine = engine_on([100, 110], cash=1e3)
    engine.add(SWAP, book_bars([200, 190], tick=1e-12))
    result = engine.run_targets({SPOT: [1.0, 1.0], SWAP: [-2.0, -2.0]})
    assert result.bars["net_value"].to_list() == pytest.approx([1000, 1000 + 10 + 20])
    assert result.bars["cash"].to_list() == pytest.approx([900, 900])
    swaps = result.positions.filter(pl.col("instrument") == "BTC-USDT-SWAP")
    assert swaps["unrealised"].to_list() == pytest.approx([0, 20], abs=1e-9)


def test_settlements_are_read_at_the_second_they_are_meant_for():
    table = pl.DataFrame({"funding_time": [1_704_067_200_003, 1_704_096_000_000], "funding_rate": [0.0001, -0.0002]})
    schedule = funding_schedule(table)
    assert schedule.times.tolist() == [1_704_067_200_000_000, 1_704_096_000_000_000]
    assert schedule.rates.tolist() == [0.0001, -0.0002]
    assert np.isnan(schedule.marks).all()


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"rate": [0.1]}, "timestamp and rate"),
        ({"funding_time": [1_704_067_200_000]}, "timestamp and rate"),
        ({"funding_time": [1_704_067_200_000], "rate": [np.nan]}, "rate must be finite"),
        ({"funding_time": [1_704_067_200_000] * 2, "rate": [0.1, 0.1]}, "must increase"),
        ({"funding_time": [1_704_067_200_000], "rate": [0.1], "mark_price": [0.0]}, "mark must be positive"),
        ({"timestamp": ["yesterday"], "rate": [0.1]}, "must be UTC"),
    ],
)
def test_funding_that_breaks_a_rule_is_refused(columns, rule):
    with pytest.raises(MarketDataError, match=rule):
        funding_schedule(pl.DataFrame(columns))


def test_legs_that_one_account_cannot_hold_are_refused(book_bars):
    bars, engine = book_bars([100.0, 101.0]), BacktestEngine()
    engine.add(SPOT, bars)
    for instrument, keywords, rule in (
        (SPOT, {}, "is a leg already"),
        (spot_instrument("BTC", "EUR"), {}, "one quote asset"),
        (swap_instrument("BTC", "USDT", "coin_margin", 100.0), {}, "accounts in the quote asset"),
        (spot_instrument("ETH", "USDT"), {"funding": pl.DataFrame()}, "only swaps have funding"),
        (SWAP, {"max_position": -1.0}, "max_position"),
        (SWAP, {"liquidity_scale": 0.0}, "liquidity_scale"),
    ):
        with pytest.raises(ValueError, match=rule):
            engine.add(instrument, bars, **keywords)
    with pytest.raises(ValueError, match="no leg"):
        BacktestEngine().run_targets([1.0])
    with pytest.raises(ValueError, match="initial_cash"):
        BacktestEngine(float("nan"))


def test_bars_and_snapshots_must_run_forwards(engine_on, book_bars):
    bars = book_bars([100.0, 101.0, 102.0])
    with pytest.raises(MarketDataError, match="bar ends must increase"):
        engine_on(bars[[0, 2, 1]]).run_targets([0, 0, 0])
    with pytest.raises(MarketDataError, match="snapshot times must increase"):
        engine_on(bars, leg={"snapshots": bars[[1, 0]]}).run_targets([0, 0, 0])
    marked = bars.with_columns(mark_price=pl.col("close"))
    inside = bars.with_columns(pl.col("timestamp") + pl.duration(minutes=1))
    with pytest.raises(MarketDataError, match="snapshots need the column"):
        engine_on(marked, leg={"snapshots": inside}).run_targets([0, 0, 0])


def test_contracts_of_a_swap_are_base_units_in_the_engine(engine_on, scripted):
    """A venue's lot of one contract of 0.001 takes 0.005 and refuses 0.0005."""
    contracts = swap_instrument("BTC", "USDT", contract_size=0.001, lot_size=1)
    script = {0: [Order(contracts, "buy", 0.005), Order(contracts, "buy", 0.0005)]}
    result = engine_on([100, 110], instrument=contracts).run(scripted(script))
    assert result.bars["net_value"].to_list() == pytest.approx([100, 100.05])
    assert result.rejections["reason"].to_list() == ["off_grid"]
