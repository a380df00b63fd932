"""Hand ledgers: what one account holds, pays and is worth."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.backtest import Order, Target, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine.portfolio import Portfolio

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
CLOSE = {"abs": 1e-9, "rel": 1e-9}


def funding_at(bars: dict[float, float]) -> pl.DataFrame:
    """Rates by bar number, counted from the first bar's end."""
    start = np.datetime64("2024-01-01T00:10", "us")
    times = np.array([start + np.timedelta64(int(bar * 600_000), "ms") for bar in bars], dtype="datetime64[us]")
    return pl.DataFrame({"timestamp": pl.Series(times).dt.replace_time_zone("UTC"), "rate": list(bars.values())})


@pytest.mark.parametrize("instrument", [SPOT, SWAP])
@pytest.mark.parametrize(
    ("targets", "worth", "fees", "realised"),
    [
        ([1, 1, 0, 0], [99, 109, 102.95, 102.95], [1, 0, 1.05, 0], 5),
        ([-1, -1, 0, 0], [99, 89, 92.95, 92.95], [1, 0, 1.05, 0], -5),
        ([1, -1, -1, 0], [99, 106.8, 111.8, 125.9], [1, 2.2, 0, 0.9], 10 + 20),
    ],
    ids=["long", "short", "flip"],
)
def test_one_unit_is_booked_bar_by_bar(engine_on, instrument, targets, worth, fees, realised):
    """Marks 100, 110, 105, 90, one percent of the notional a trade and no spread to speak of."""
    engine = engine_on([100, 110, 105, 90], instrument=instrument, rate=0.01)
    result = engine.run_targets(targets)
    assert result.positions["position"].to_list() == targets
    assert result.bars["net_value"].to_list() == pytest.approx(worth, **CLOSE)
    assert result.bars["fee"].to_list() == pytest.approx(fees, **CLOSE)
    assert result.bars["realised"][-1] == pytest.approx(realised, **CLOSE)
    assert result.bars["reward"].sum() == pytest.approx(worth[-1] - 100, **CLOSE)


def test_a_flip_realises_only_what_it_closes(engine_on):
    engine = engine_on([100, 110, 110], rate=0.001)
    result = engine.run_targets([1, -0.5, -0.5])
    flip = result.fills.row(1, named=True)
    assert flip["size"] == pytest.approx(1.5)
    assert flip["realised"] == pytest.approx(10, **CLOSE)
    assert flip["fee"] == pytest.approx(0.001 * 1.5 * 110, **CLOSE)
    assert (flip["position"], flip["entry"]) == (pytest.approx(-0.5), pytest.approx(110))


def test_partial_fills_add_up_to_the_order(engine_on, scripted, bars_of):
    """A limit order at 100 finds 0.4 at once; 0.6 come when the ask returns to 100."""
    bids = [[(99, 5)]] * 3
    asks = [[(100, 0.4), (102, 9)], [(101, 5)], [(100, 5)]]
    engine = engine_on(bars_of(bids, asks), rate=0.01, maker_rate=0.002, fee_basis="fill")
    strategy = scripted({0: [Order(SPOT, "buy", 1.0, 100.0, "limit", "patient")]})
    result = engine.run(strategy)
    assert [(fill.size, fill.liquidity, fill.tag) for fill in strategy.fills] == [
        (pytest.approx(0.4), "taker", "patient"),
        (pytest.approx(0.6), "maker", "patient"),
    ]
    assert result.positions["position"].to_list() == pytest.approx([0.4, 0.4, 1.0])
    assert result.bars["fee"].sum() == pytest.approx(0.01 * 40 + 0.002 * 60, **CLOSE)
    assert result.bars["cash"][-1] == pytest.approx(100 - 100 - 0.52, **CLOSE)
    assert result.bars["net_value"][-1] == pytest.approx(99.5 - 0.52, **CLOSE)


def test_funding_settles_on_what_was_held_into_its_time_at_the_mark_of_its_time(engine_on):
    """Bought at the first settlement's own time: only the second and the third, between two bars, are paid."""
    engine = engine_on(
        [100, 110, 105, 90],
        instrument=SWAP,
        leg={"funding": funding_at({0: 0.5, 1: 0.01, 2.5: -0.02, 3: 0.03})},
    )
    result = engine.run_targets([2, 2, 0, -1])
    assert result.funding["amount"].to_list() == pytest.approx([-0.01 * 2 * 110], **CLOSE)
    held = engine.run_targets([2, 2, 2, 0])
    paid = [-0.01 * 220, 0.02 * 2 * 105, -0.03 * 2 * 90]
    assert held.funding["amount"].to_list() == pytest.approx(paid, **CLOSE)
    assert held.bars["net_value"][-1] == pytest.approx(100 + 2 * (90 - 100) + sum(paid), **CLOSE)
    assert held.bars["cash"][-1] == pytest.approx(held.bars["net_value"][-1], **CLOSE)


def test_the_venues_own_mark_values_and_funds(engine_on, book_bars):
    bars = book_bars([100, 110], tick=1e-12).with_columns(mark_price=pl.Series([101.0, 108.0]))
    engine = engine_on(bars, instrument=SWAP, leg={"funding": funding_at({1: 0.01})})
    result = engine.run_targets([1, 1])
    assert result.bars["net_value"].to_list() == pytest.approx([101, 108 - 1.08], **CLOSE)
    assert result.funding["mark"].to_list() == [108.0]
    assert result.fills["slippage"].to_list() == pytest.approx([-1], **CLOSE)


def test_a_swap_is_liquidated_by_force_and_pays_for_it(engine_on):
    """10 at 100 with 100 of cash: at 94 the net value 40 is below 5 % of 940, so all is closed at 94."""
    margin = {"mode": "cross", "swap_initial_rate": 0.1, "swap_maintenance_rate": 0.05, "liquidation_fee_rate": 0.01}
    engine = engine_on([100, 96, 94, 120], instrument=SWAP, rate=0.001, cash=101, margin=margin)
    result = engine.run_targets([10, 10, 0, 0])
    forced = result.fills.row(1, named=True)
    assert (forced["cause"], forced["side"], forced["size"]) == ("liquidation", "sell", pytest.approx(10))
    assert forced["fee"] == pytest.approx(0.94, **CLOSE)
    assert forced["liquidation_fee"] == pytest.approx(9.4, **CLOSE)
    assert result.bars["net_value"].to_list() == pytest.approx(
        [101 - 1, 100 - 40, 100 - 60 - 10.34, 100 - 60 - 10.34], **CLOSE
    )
    assert result.fees["kind"].to_list() == ["taker", "taker", "liquidation"]
    assert result.fees["amount"].sum() == pytest.approx(result.bars["fee"].sum(), **CLOSE)
    assert "liquidation" in result.equity["event"].to_list()


def test_ruin_ends_the_run(engine_on):
    result = engine_on([100, 150, 210, 10]).run_targets([-1, -1, -1, -1])
    assert result.ruined
    assert result.stopped == "ruin"
    assert result.bars["net_value"].to_list() == pytest.approx([100, 50, -10], **CLOSE)
    assert result.performance().total_return == -1


def test_the_metrics_take_the_year_from_the_bars(engine_on):
    result = engine_on([100, 110, 105, 120]).run_targets([1, 1, 1, 1])
    assert result.performance() == result.performance(52_560)
    assert result.performance().total_return == pytest.approx(0.2)


fills = st.lists(
    st.tuples(st.floats(-5, 5).filter(lambda size: abs(size) > 1e-3), st.floats(1, 1e4), st.floats(1, 1e4)),
    min_size=1,
    max_size=12,
)


@given(fills)
@settings(max_examples=60, deadline=None)
def test_two_accountings_and_both_kinds_of_settlement_agree(trades):
    """Cash and positions against marks, slippage and fees; and what a swap is worth is what spot is worth."""
    accounts = [Portfolio(1000.0, [margined]) for margined in (False, True)]
    for size, price, mark in trades:
        for account in accounts:
            account.revalue(0, mark)
            account.fill(0, size, abs(size) * price, 0.25)
    for account in accounts:
        held = account.holdings[0]
        scale = 1e-9 * sum(abs(size) * max(price, mark) for size, price, mark in trades) + 1e-6
        assert held.position == pytest.approx(sum(size for size, _, _ in trades), abs=1e-9)
        assert account.net_value == pytest.approx(
            1000 + held.realised + held.unrealised - account.fees + account.funding, abs=scale
        )
        assert account.net_value == pytest.approx(
            1000 + account.price_profit + account.funding - account.slippage - account.fees, abs=scale
        )
        assert account.net_value == pytest.approx(accounts[0].net_value, abs=scale)


def test_a_target_is_an_order_for_what_is_missing(engine_on, scripted):
    strategy = scripted({0: [Target(SPOT, 2.0, "aim"), Order(SPOT, "sell", 0.5)], 1: [Target(SPOT, 1.5)]})
    result = engine_on([100, 100]).run(strategy)
    assert result.fills.select("cause", "size", "tag").rows() == [("target", 2.0, "aim"), ("order", 0.5, "")]
