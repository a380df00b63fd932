"""Round trips by hand, and what holds for those of any ledger."""

from __future__ import annotations

from dataclasses import replace as changed

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archetype_dagster.backtest.audit import TRIP_SCHEMA, round_trips
from archetype_dagster.backtest.ledger import Ledger, reconcile
from archetype_dagster.backtest.replay import replay, replay_priced
from archetype_dagster.settings import ExecutionSettings, PairSettings

PAPER = ExecutionSettings()
COSTS = ("fees", "slippage", "gross_pnl", "net_pnl")


def test_a_round_trip_has_its_prices_its_costs_and_its_time(priced):
    ledger = replay_priced([2, 2, 1, 1], priced([100, 110, 105, 90], rate=0.01, half_spread=0.5), settings=PAPER)
    [trip] = round_trips(ledger).to_dicts()
    # In at 100.5, out at 104.5: 5 at the mark, 1 of slippage, 1.00 and 1.05 of commission.
    assert (trip["side"], trip["entry_row"], trip["exit_row"], trip["bars_held"]) == ("long", 0, 2, 2)
    assert (trip["entry_price"], trip["exit_price"], trip["size"]) == (100.5, 104.5, 1.0)
    assert [trip[name] for name in COSTS] == pytest.approx([2.05, 1.0, 5.0, 1.95])
    assert not trip["is_open"]
    assert trip["exit_time"].isoformat() == "2024-01-01T00:30:00+00:00"


def test_a_flip_closes_one_trip_and_opens_another(priced):
    ledger = replay_priced([2, 0, 0, 1], priced([100, 110, 105, 108], rate=0.001, half_spread=0.5), settings=PAPER)
    long, short = round_trips(ledger).to_dicts()
    # The flip at 110 costs 0.22 and 1.0; each trip bears half.
    assert [long[name] for name in COSTS] == pytest.approx([0.1 + 0.11, 1.0, 10.0, 10 - 0.21 - 1])
    assert [short[name] for name in COSTS] == pytest.approx([0.11 + 0.108, 1.0, 2.0, 2 - 0.218 - 1])
    assert (long["exit_price"], short["entry_price"]) == (109.5, 109.5)
    assert (short["side"], short["entry_row"], short["exit_price"]) == ("short", 1, 108.5)


def test_a_flip_to_a_smaller_position_realises_only_what_it_closes():
    """One unit bought at 100 is flipped to half a unit short at 110: +10 realised, fee on 1.5 units."""
    columns = {
        "mark": [100.0, 110.0, 106.0],
        "position": [1.0, -0.5, -0.5],
        "traded": [1.0, -1.5, 0.0],
        "turnover": [1.0, 1.5, 0.0],
        "fee": [0.1, 0.165, 0.0],
        "slippage": [0.0, 0.0, 0.0],
        "cash": [-0.1, 164.735, 164.735],
        "net_value": [99.9, 109.735, 111.735],
        "reward": [9.9, 1.835, 0.0],
    }
    ledger = Ledger(
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(3) * np.timedelta64(10, "m"),
        action=np.array([2, 0, 0], dtype=np.int8),
        **{name: np.array(values) for name, values in columns.items()},
        initial_capital=100.0,
        max_position=1.0,
        commission_rate=0.001,
    )
    assert [failure for failure in reconcile(ledger).failures if "-m, 0 or m" not in failure] == []
    long, short = round_trips(ledger).to_dicts()
    assert (long["size"], long["gross_pnl"], long["exit_price"]) == (1.0, 10.0, 110.0)
    assert (short["size"], short["gross_pnl"], short["entry_price"], short["is_open"]) == (0.5, 2.0, 110.0, True)
    assert (long["fees"], short["fees"]) == (pytest.approx(0.1 + 0.11), pytest.approx(0.055))


def test_fills_of_several_levels_are_one_position_and_one_fee(book_bars):
    """Bought 1.0 as 0.4 at 100.5 and 0.6 at 101.5; sold 0.4 at 99.5 and 0.6 at 98.5."""
    unit = PairSettings(base="X", max_position=1, beta_1=0, liquidity_scale=1, synthetic_price=1, tick_size=0.01)
    bars = book_bars([100.0] * 3, tick=1.0).with_columns(pl.lit(0.4).alias("ask1_size"), pl.lit(0.4).alias("bid1_size"))
    ledger = replay([2, 1, 1], bars, pair=unit, settings=ExecutionSettings(commission_rate=0.01))
    assert ledger.position.tolist() == [1, 0, 0]
    assert ledger.fee.tolist() == [1, 1, 0]
    [trip] = round_trips(ledger).to_dicts()
    assert (trip["size"], trip["fees"]) == (1.0, 2.0)
    assert trip["entry_price"] == pytest.approx(0.4 * 100.5 + 0.6 * 101.5)
    assert trip["exit_price"] == pytest.approx(0.4 * 99.5 + 0.6 * 98.5)


def test_settling_ends_a_trip_at_each_horizon(priced):
    settle = ExecutionSettings(horizon_boundary="settle")
    bars = priced([100, 101, 102, 103], rate=0.01, half_spread=0.5)
    ledger = replay_priced([2, 2, 2, 1], bars, settings=settle, horizon_starts=np.array([0, 2]))
    first, second = round_trips(ledger).to_dicts()
    assert (first["exit_row"], second["entry_row"], second["exit_row"]) == (2, 2, 3)
    assert [first[name] for name in COSTS] == pytest.approx([1 + 1.02, 1.0, 2.0, 2 - 2.02 - 1])
    assert (first["exit_price"], second["entry_price"]) == (101.5, 102.5)


def test_an_open_trip_is_marked_to_the_mark_and_flagged(priced):
    ledger = replay_priced([1, 0, 0], priced([100, 110, 104], rate=0.01, half_spread=0.5), settings=PAPER)
    [trip] = round_trips(ledger).to_dicts()
    assert (trip["is_open"], trip["exit_row"], trip["exit_price"]) == (True, 2, 104.0)
    assert [trip[name] for name in COSTS] == pytest.approx([1.1, 0.5, 6.0, 4.4])


def test_a_trade_of_the_last_bar_is_a_trip_of_no_bars(priced):
    [trip] = round_trips(replay_priced([1, 2], priced([100, 100], rate=0.01), settings=PAPER)).to_dicts()
    assert (trip["bars_held"], trip["is_open"], trip["net_pnl"]) == (0, True, -1.0)


def test_no_trade_gives_no_trip(priced):
    trips = round_trips(replay_priced([1, 1], priced([100, 110]), settings=PAPER))
    assert trips.height == 0
    assert dict(trips.schema) == TRIP_SCHEMA


@pytest.mark.parametrize("field", ["mark", "position", "turnover", "fee", "slippage"])
def test_a_ledger_with_a_hole_is_refused_by_row(priced, field):
    ledger = replay_priced([2, 0, 1], priced([100, 110, 105]), settings=PAPER)
    holed = getattr(ledger, field).copy()
    holed[1] = np.nan
    with pytest.raises(ValueError, match=rf"{field} must be finite, got nan at 2024-01-01T00:20:00.000000 \(row 1\)"):
        round_trips(changed(ledger, **{field: holed}))


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_trips_never_overlap_and_earn_the_change_of_net_value(priced, data):
    size = data.draw(st.integers(1, 30))
    actions = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    mark = data.draw(st.lists(st.floats(10, 1e5), min_size=size, max_size=size))
    execution = ExecutionSettings(horizon_boundary=data.draw(st.sampled_from(["carry", "settle"])))
    bars = priced(mark, rate=0.0002, half_spread=0.01, max_position=8)
    ledger = replay_priced(actions, bars, settings=execution, horizon_starts=np.arange(0, size, 4))
    trips = round_trips(ledger)
    earned = ledger.net_value[-1] - ledger.initial_capital
    assert trips["net_pnl"].sum() == pytest.approx(earned, abs=1e-9 * max(ledger.initial_capital, *ledger.mark * 8))
    assert (trips["entry_row"][1:] >= trips["exit_row"][:-1]).all()
    assert trips["is_open"].sum() == (ledger.position[-1] != 0)
    paid = (trips["side"] == "long").cast(pl.Int8) * 2 - 1
    by_price = paid * trips["size"] * (trips["exit_price"] - trips["entry_price"]) - trips["fees"]
    assert by_price.to_numpy() == pytest.approx(trips["net_pnl"].to_numpy(), abs=1e-5)
