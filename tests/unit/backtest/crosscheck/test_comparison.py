"""Hand ledgers through replay, audit and both other engines; and ledgers that these must not accept.

Everything that loads an engine is in this file: their imports are slow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from archetype_dagster.backtest.audit import audit
from archetype_dagster.backtest.crosscheck import ENGINES, cross_check
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.replay import replay
from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.settings import ExecutionSettings, PairSettings

# Compiled on first use, which takes longer than ten seconds where nothing is compiled yet.
BOTH = [pytest.param("backtrader"), pytest.param("vectorbt", marks=pytest.mark.slow)]


@dataclass(frozen=True)
class Hand:
    """A sequence worked out by hand: what is traded, and each column of the ledger."""

    mid: list[float]
    size: float
    tick: float
    max_position: float
    settings: ExecutionSettings
    actions: list[int]
    capital: float
    position: list[float]
    fee: list[float]
    slippage: list[float]
    cash: list[float]
    net_value: list[float]
    trip_profits: list[float]
    horizon_starts: tuple[int, ...] = ()

    @property
    def pair(self) -> PairSettings:
        return PairSettings(
            base="X",
            max_position=self.max_position,
            beta_1=0,
            liquidity_scale=1,
            synthetic_price=1,
            tick_size=0.01,
        )


# Horizons of two bars start at 0, 2 and 4. Levels lie 0.5, 1.5, ... from the mid and hold 2 each, so 2 units lose
# 2 x 0.5 = 1. Bought at bar 1 (101): 202 + 1, fee 0.1 % of 202. Carried over bar 2 at no cost. Sold at bar 4 (99):
# 198 - 1, fee 0.198. From 200: -203.202 + 196.802 = -6.4, the trip's own -4 at the mark, -2 slippage, -0.4 fees.
CARRIED_LONG = Hand(
    mid=[100, 101, 104, 102, 99, 100],
    size=2.0,
    tick=1.0,
    max_position=2.0,
    settings=ExecutionSettings(commission_rate=0.001),
    actions=[1, 2, 2, 2, 1, 1],
    capital=200.0,
    position=[0, 2, 2, 2, 0, 0],
    fee=[0, 0.202, 0, 0, 0.198, 0],
    slippage=[0, 1, 0, 0, 1, 0],
    cash=[200, -3.202, -3.202, -3.202, 193.6, 193.6],
    net_value=[200, 198.798, 204.798, 200.798, 193.6, 193.6],
    trip_profits=[-6.4],
    horizon_starts=(0, 2, 4),
)

# Levels hold 3 each, 1 apart, the first 0.5 away: 4 units lose 3 x 0.5 + 1 x 1.5 = 3, 8 units lose
# 3 x 0.5 + 3 x 1.5 + 2 x 2.5 = 11. Orders wait one bar. Short at bar 1 (50): 200 - 3 - 0.4 = 196.6 in. Flip at bar 3
# (45): 8 bought for 360 + 11 + 0.72 = 371.72. Held at the end (48), so the long is open.
# Trips: short 4 x 5 - 3 - 0.4 - half of the flip's 11.72 = 10.74; long 4 x 3 - 5.86 = 6.14.
SHORT_THEN_FLIP = Hand(
    mid=[51, 50, 47, 45, 48],
    size=3.0,
    tick=1.0,
    max_position=4.0,
    settings=ExecutionSettings(commission_rate=0.002, execution_delay_bars=1, initial_capital=500.0),
    actions=[0, 0, 2, 2, 2],
    capital=500.0,
    position=[0, -4, -4, 4, 4],
    fee=[0, 0.4, 0, 0.72, 0],
    slippage=[0, 3, 0, 11, 0],
    cash=[500, 696.6, 696.6, 324.88, 324.88],
    net_value=[500, 496.6, 508.6, 504.88, 516.88],
    trip_profits=[10.74, 6.14],
)

# Five levels of 1, 1 apart, the first 0.5 away: 7 units lose 0.5 + 1.5 + 2.5 + 3.5 + 4.5 = 12.5 on what is visible and
# 2 x 4.5 = 9 on the rest at the last level; 14 units lose 12.5 + 9 x 4.5 = 53. Long at bar 0 (100), flipped at bar 1
# (110), closed at bar 2 (108). Fees 1 % of 700, 1540 and 756. Beyond the capital, on credit: cash is -28.5 at bar 0.
BEYOND_DEPTH = Hand(
    mid=[100, 110, 108, 108],
    size=1.0,
    tick=1.0,
    max_position=7.0,
    settings=ExecutionSettings(commission_rate=0.01, depth_policy="last_level"),
    actions=[2, 0, 1, 1],
    capital=700.0,
    position=[7, -7, 0, 0],
    fee=[7, 15.4, 7.56, 0],
    slippage=[21.5, 53, 21.5, 0],
    cash=[-28.5, 1443.1, 658.04, 658.04],
    net_value=[671.5, 673.1, 658.04, 658.04],
    # 70 - 21.5 - 7 - half of 68.4; 14 - 34.2 - 21.5 - 7.56.
    trip_profits=[7.3, -49.26],
)

# Five levels of 1e8 hold 5e8 units within 9e-5 of a mid of 1, 5e8 of notional, where the impact curve has long reached
# its last distance, 31.1397 bp. 6e8 units lose 1e8 x (1 + 3 + 5 + 7 + 9) x 1e-5 = 25,000 on what is visible and
# 1e8 x 0.00311397 = 311,397 on the rest.
EXTRAPOLATED = Hand(
    mid=[1.0, 1.0, 1.25],
    size=1e8,
    tick=2e-5,
    max_position=6e8,
    settings=ExecutionSettings(commission_rate=0.0),
    actions=[0, 0, 0],
    capital=6e8,
    position=[-6e8] * 3,
    fee=[0.0] * 3,
    slippage=[336_397, 0, 0],
    cash=[1_199_663_603] * 3,
    net_value=[599_663_603, 599_663_603, 449_663_603],
    trip_profits=[-150_336_397],
)

# As the carried long, but bar 2 settles: 2 sold at 104 and bought back, 2 of slippage and 0.416 of fees more.
SETTLED_LONG = changed(
    CARRIED_LONG,
    settings=ExecutionSettings(commission_rate=0.001, horizon_boundary="settle"),
    fee=[0, 0.202, 0.416, 0, 0.198, 0],
    slippage=[0, 1, 2, 0, 1, 0],
    cash=[200, -3.202, -5.618, -5.618, 191.184, 191.184],
    net_value=[200, 198.798, 202.382, 198.382, 191.184, 191.184],
    # 6 - 2 - 0.41 and -10 - 2 - 0.406.
    trip_profits=[3.59, -12.406],
)

HANDS = {
    "carried_long": CARRIED_LONG,
    "short_then_flip": SHORT_THEN_FLIP,
    "beyond_depth": BEYOND_DEPTH,
    "extrapolated": EXTRAPOLATED,
    "settled_long": SETTLED_LONG,
}


def market_of(hand: Hand, book_bars: Callable[..., pl.DataFrame]) -> pl.DataFrame:
    return book_bars(hand.mid, size=hand.size, tick=hand.tick)


def replayed(hand: Hand, bars: pl.DataFrame, **changes: object) -> Ledger:
    arguments = {"pair": hand.pair, "settings": hand.settings, "horizon_starts": np.array(hand.horizon_starts)}
    return replay(hand.actions, bars, **{**arguments, **changes})


def checked(hand: Hand, ledger: Ledger, bars: pl.DataFrame, engine: str = "backtrader"):
    starts = np.array(hand.horizon_starts, dtype=np.int64)
    return cross_check(ledger, bars, pair=hand.pair, settings=hand.settings, engine=engine, horizon_starts=starts)


@pytest.mark.parametrize("name", HANDS)
def test_replay_and_audit_agree_with_the_hand(book_bars, name):
    hand = HANDS[name]
    bars = market_of(hand, book_bars)
    ledger = replayed(hand, bars)
    assert ledger.initial_capital == hand.capital
    for column in ("position", "fee", "slippage", "cash", "net_value"):
        assert getattr(ledger, column) == pytest.approx(getattr(hand, column), rel=1e-9, abs=1e-9 * hand.capital), (
            column
        )
    report = audit(ledger, bars, pair=hand.pair, settings=hand.settings)
    assert report.failures == ()
    assert report.trips["net_pnl"].to_list() == pytest.approx(hand.trip_profits, rel=1e-9)
    assert report.total_return == pytest.approx(hand.net_value[-1] / hand.capital - 1, rel=1e-9)


@pytest.mark.parametrize("engine", BOTH)
def test_other_engines_agree_with_the_hand(book_bars, engine):
    """Their accounts, not ours: the hand's own columns stand in for the ledger that they are compared with."""
    for hand in HANDS.values():
        bars = market_of(hand, book_bars)
        by_hand = changed(
            replayed(hand, bars),
            position=np.array(hand.position, dtype=float),
            cash=np.array(hand.cash, dtype=float),
            net_value=np.array(hand.net_value, dtype=float),
        )
        found = checked(hand, by_hand, bars, engine)
        assert found.passed, found.summary
        assert found.largest_difference <= 1e-9
        assert found.position_differences == 0
        assert found.engine_pnl == pytest.approx(hand.net_value[-1] - hand.capital, rel=1e-9)
        assert (found.engine, found.bars) == (engine, len(hand.mid))


@pytest.fixture
def walk(book_bars):
    """400 bars with two gaps and books that a flip exceeds, and random decisions, each kept for a while."""
    rng = np.random.default_rng(7)
    bars = book_bars(3000 * np.exp(np.cumsum(rng.normal(0, 0.003, 420))), size=30.0, tick=0.5)
    segment = pl.Series("segment", np.digitize(np.arange(420), [150, 290]).astype(np.int32))
    kept = np.ones(420, dtype=bool)
    kept[[145, 146, 147, 148, 149, *range(275, 290)]] = False
    bars = bars.with_columns(segment).filter(pl.Series(kept))
    return bars, np.repeat(rng.integers(0, 3, 100), 4)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("delay", [0, 2])
def test_engines_agree_over_gaps_with_delay_and_beyond_depth(walk, engine, delay):
    bars, actions = walk
    execution = ExecutionSettings(execution_delay_bars=delay)
    ledger = replay(actions, bars, pair="ETH", settings=execution)
    assert ledger.trades > 30
    found = cross_check(ledger, bars, pair="ETH", settings=execution, engine=engine)
    assert found.passed, found.summary
    assert found.largest_difference < 1e-9
    assert found.ledger_pnl == pytest.approx(found.engine_pnl, rel=1e-9)
    assert found.differing.height == 0
    assert "400 bars agree" in found.summary


@given(data=st.data())
@examples(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_backtrader_agrees_on_any_decisions(book_bars, data):
    size = data.draw(st.integers(1, 25))
    actions = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    mid = data.draw(st.lists(st.floats(50, 200), min_size=size, max_size=size))
    boundary = data.draw(st.sampled_from(["carry", "settle"]))
    execution = ExecutionSettings(execution_delay_bars=data.draw(st.integers(0, 3)), horizon_boundary=boundary)
    starts = np.arange(0, size, 5)
    bars = book_bars(mid, size=3.0, tick=1.0)
    ledger = replay(actions, bars, pair="BTC", settings=execution, horizon_starts=starts)
    found = cross_check(ledger, bars, pair="BTC", settings=execution, horizon_starts=starts)
    assert found.passed, found.summary


ALTERATIONS = {
    "fee": lambda ledger, row: with_costs(ledger, row, fee=1.02),
    "fill": lambda ledger, row: with_costs(ledger, row, slippage=1.2),
    "position": lambda ledger, row: changed(ledger, position=swapped(ledger.position, row)),
    "net_value": lambda ledger, row: changed(ledger, net_value=scaled(ledger.net_value, row)),
}


def with_costs(ledger: Ledger, row: int, *, fee: float = 1.0, slippage: float = 1.0) -> Ledger:
    """The ledger with another cost of one trade, its cash and net value following from it."""
    more = ledger.fee[row] * (fee - 1) + ledger.slippage[row] * (slippage - 1)
    later = more * (np.arange(len(ledger)) >= row)
    return changed(ledger, cash=ledger.cash - later, net_value=ledger.net_value - later)


def swapped(values: np.ndarray, row: int) -> np.ndarray:
    """The value before it at `row`: that bar's trade came one bar late."""
    values = values.copy()
    values[row] = values[row - 1]
    return values


def scaled(values: np.ndarray, row: int) -> np.ndarray:
    values = values.copy()
    values[row] *= 1 + 3e-6
    return values


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_one_altered_bar_fails_and_is_shown(walk, engine, alteration):
    bars, actions = walk
    ledger = replay(actions, bars, pair="ETH")
    row = int(np.flatnonzero(ledger.traded)[10])
    found = cross_check(ALTERATIONS[alteration](ledger, row), bars, pair="ETH", engine=engine)
    assert not found.passed
    assert found.differing["row"][0] == row
    assert found.differing["timestamp"][0] == bars["timestamp"][row]
    assert f"{bars['timestamp'][row]:%Y-%m-%d %H:%M}" in found.summary
    assert found.largest_difference > 1e-6 or found.position_differences == 1


@pytest.mark.parametrize(
    "other",
    [
        ExecutionSettings(commission_rate=0.00021),
        ExecutionSettings(execution_delay_bars=1),
    ],
)
def test_a_ledger_of_other_rules_fails(walk, other):
    bars, actions = walk
    found = cross_check(replay(actions, bars, pair="ETH", settings=other), bars, pair="ETH")
    assert not found.passed
    assert found.value_differences > 300
    assert found.differing.height == 20
    assert found.ledger_pnl != pytest.approx(found.engine_pnl, rel=1e-6)
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["differing"][0]["row"] >= 0


def test_a_ruined_ledger_is_checked_up_to_its_end(book_bars):
    bars = book_bars([100.0, 150.0, 210.0, 100.0])
    execution = ExecutionSettings(horizon_boundary="settle")
    starts = np.array([0, 3])
    ledger = replay([0, 0, 0, 0], bars, pair="BTC", settings=execution, horizon_starts=starts)
    assert ledger.ruined
    found = cross_check(ledger, bars, pair="BTC", settings=execution, horizon_starts=starts)
    assert (found.passed, found.bars) == (True, 3)


def test_a_bar_that_the_market_does_not_have_is_refused(walk):
    bars, actions = walk
    ledger = replay(actions, bars, pair="ETH")
    with pytest.raises(MarketDataError, match=r"row 3, field timestamp: the ledger's bar .* is not among the bars"):
        cross_check(ledger, bars.filter(pl.int_range(pl.len()) != 3), pair="ETH")


def test_an_unknown_engine_and_one_that_is_not_installed_are_named(walk, monkeypatch):
    bars, actions = walk
    ledger = replay(actions, bars, pair="ETH")
    with pytest.raises(SettingsError, match="engine must be one of backtrader, vectorbt, got engine='excel'"):
        cross_check(ledger, bars, pair="ETH", engine="excel")
    for engine in ENGINES:
        monkeypatch.delitem(sys.modules, f"archetype_dagster.backtest.crosscheck.{engine}_engine", raising=False)
        monkeypatch.setitem(sys.modules, engine, None)
        with pytest.raises(SettingsError, match=rf"needs {engine}, .*pip install 'archetype-dagster\[crosscheck\]'"):
            cross_check(ledger, bars, pair="ETH", engine=engine)
