"""A trader's fills, faults and limits, bar by bar; the stand-in policy decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.replay import replay
from archetype_dagster.errors import SettingsError
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.paper_trading import FeedBar, PaperTrader
from archetype_dagster.paper_trading.admission import look_at
from archetype_dagster.settings import ExecutionSettings, Settings
from archetype_dagster.settings.paper_trading import PaperTradingSettings
from archetype_dagster.types import JsonDict

Rows = list[dict[str, Any]]
NO_LIMITS = {"stale_bars": None, "max_drawdown": None}


def settings(**limits: Any) -> PaperTradingSettings:
    return PaperTradingSettings(limits={**NO_LIMITS, **limits})


def take(trader: PaperTrader, rows: Rows, now: datetime | None = None) -> list[JsonDict]:
    """Records of rows until trading stops."""
    records = []
    for seen in look_at([FeedBar(row, str(place)) for place, row in enumerate(rows)], bar_minutes=10, now=now):
        record = trader.take(seen)
        if record is not None:
            records.append(record)
        if trader.stopped is not None:
            break
    return records


@pytest.fixture
def trader(standin: ModuleType) -> Callable[..., PaperTrader]:
    def make(chosen: PaperTradingSettings | None = None, **policy: Any) -> PaperTrader:
        return PaperTrader(standin.StandInPolicy(**policy), chosen or settings())

    return make


@pytest.mark.parametrize(("delay", "boundary"), [(0, "carry"), (2, "carry"), (1, "settle")])
def test_fills_are_those_of_a_replay_of_the_same_decisions(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows], delay: int, boundary: str
):
    rows = [row for place, row in enumerate(make_rows(120)) if place not in (50, 51, 90)]
    records = take(trader(delay=delay, boundary=boundary), rows)
    actions = [
        {"short": 0, "flat": 1, "long": 2}[(record["decision"] or {"action": "flat"})["action"]] for record in records
    ]
    starts = [place for place, record in enumerate(records) if record["decision"] and record["decision"]["tau"] == 0]
    ledger = replay(
        actions,
        assign_segments(pl.DataFrame(rows), bar_minutes=10),
        pair=Settings().pair("BTC").model_copy(update={"max_position": 2.0}),
        settings=ExecutionSettings(execution_delay_bars=delay, horizon_boundary=boundary),
        horizon_starts=starts,
    )
    assert {record["position"] for record in records} == {-2.0, 0.0, 2.0}
    for name in ("net_value", "cash", "position", "fee", "slippage", "mark"):
        found = [record["price" if name == "mark" else name] for record in records]
        assert found == pytest.approx(getattr(ledger, name).tolist(), rel=1e-12, abs=1e-9), name


def test_every_fault_is_journaled_counted_and_leaves_the_rest_as_it_was(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows], with_faults: Callable[[Rows], Rows]
):
    rows = make_rows(70)
    used = trader()
    records = take(used, with_faults(rows))
    assert len(records) == 71
    assert used.counts == {"repeated_bar": 1, "late_bar": 1, "faulty_bar": 1, "missing_bar": 2, "locked_book": 1}
    faults = [record for record in records if record["kind"] == "fault"]
    assert [record["notes"][0].split(":")[0] for record in faults] == ["repeated_bar", "late_bar", "faulty_bar"]
    assert "high must be the highest price, got high=" in faults[2]["notes"][0]
    without = trader()
    clean = take(without, [row for place, row in enumerate(with_faults(rows)) if place not in (31, 32, 41)])
    bars = [record for record in records if record["kind"] == "bar"]
    assert [{**record, "cursor": None} for record in bars] == [{**record, "cursor": None} for record in clean]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"timestamp": None}, "must be a datetime with its time zone, got None"),
        ({"close": "abc"}, "field close: must be a number, got 'abc'"),
        ({"bid2_size": -1.0}, "size must be finite and not negative, got bid2_size=-1.0"),
        ({"ask2_price": 1.0}, "level 2 must not be priced better than level 1"),
        ({"book_source": "guessed"}, "book_source must be one of"),
        ({"close": float("nan")}, "price must be finite and positive"),
    ],
)
def test_a_broken_bar_is_dropped_with_its_reason(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows], change: dict[str, Any], broken: str
):
    rows = make_rows(12)
    rows[7] |= change
    used = trader()
    records = take(used, rows)
    assert records[7]["kind"] == "fault"
    assert broken in records[7]["notes"][0]
    assert used.counts == {"faulty_bar": 1, "missing_bar": 1}


def test_an_unused_bar_is_told_of_once_for_its_end_unless_it_stops_trading(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(12)
    again = [*rows[:8], rows[7], rows[3], rows[7], rows[3], {**rows[2], "close": None}, *rows[8:], rows[7]]
    used = trader()
    records = take(used, again)
    faults = [record for record in records if record["kind"] == "fault"]
    assert [record["cursor"] for record in faults] == ["8", "9", "12"]
    assert used.counts == {"repeated_bar": 1, "late_bar": 1, "faulty_bar": 1}
    restored = trader()
    restored.restore(json.loads(json.dumps(used.state())), records)
    assert take(restored, [rows[7], rows[3]]) == []
    stopping = settings().model_copy(update={"faults": settings().faults.model_copy(update={"repeated_bar": "stop"})})
    stopped = trader(stopping)
    for _ in range(2):
        assert take(stopped, [*rows[:3], rows[2]])[-1]["stop"]["limit"] == "repeated_bar"
        stopped.go_on()


def test_a_bar_ahead_of_the_clock_is_refused_before_its_silence_counts(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(12)
    wrong = {**rows[6], "timestamp": rows[6]["timestamp"] + timedelta(days=3650)}
    now = rows[-1]["timestamp"] - timedelta(minutes=10)
    used = trader(settings(stale_bars=3))
    assert take(used, [*rows[:6], wrong], now)[-1]["notes"][0].startswith("future_bar: ends more than a bar length")
    assert used.stopped is None
    assert [record["kind"] for record in take(used, rows[6:], now)] == ["bar"] * 6
    stopped = trader(settings(stale_bars=3))
    assert take(stopped, [*rows[:6], wrong])[-1]["stop"]["limit"] == "stale_data"
    stopped.go_on()
    assert [record["kind"] for record in take(stopped, [wrong, *rows[6:]], now)] == ["fault", *["bar"] * 6]


def test_a_fault_may_stop_trading(trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]):
    rows = make_rows(12)
    rows[7]["close"] = rows[7]["high"] = rows[7]["close"] * 1.5
    kept = take(trader(), rows)
    assert kept[7]["notes"] == ["price_outlier: keep"]
    used = trader(
        settings().model_copy(update={"faults": settings().faults.model_copy(update={"price_outlier": "stop"})})
    )
    records = take(used, rows)
    assert len(records) == 8
    assert records[-1]["stop"] == {"limit": "price_outlier", "message": "price_outlier: policy stop"}
    kept_position = f"position kept at {used.position:g}: the bar is not used, nor is its book"
    assert records[-1]["notes"] == ["price_outlier: policy stop", kept_position]
    with pytest.raises(ValueError, match="trading has stopped: price_outlier"):
        used.take(look_at([FeedBar(rows[8], "8")], bar_minutes=10)[0])


def test_the_drawdown_limit_closes_the_position_and_says_so(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(120)
    free = take(trader(), rows)
    value = np.array([record["net_value"] for record in free])
    drawdown = 1 - value / np.maximum.accumulate(np.maximum(value, value[0]))
    # The last new low that is reached with an open position.
    lows = np.flatnonzero((drawdown > 0) & (drawdown >= np.maximum.accumulate(drawdown)))
    stop = max(place for place in lows.tolist() if free[place]["position"])
    used = trader(settings(max_drawdown=float(drawdown[stop]) - 1e-9))
    records = take(used, rows)
    assert records[:-1] == free[:stop]
    assert records[-1]["stop"]["limit"] == "max_drawdown"
    assert records[-1]["notes"][0].startswith("drawdown ")
    assert records[-1]["position"] == 0.0
    assert records[-1]["fee"] > free[stop]["fee"]
    assert records[-1]["net_value"] < free[stop]["net_value"]
    kept = take(trader(settings(max_drawdown=float(drawdown[stop]) - 1e-9, close_on_stop=False)), rows)
    assert kept[-1]["position"] == free[stop]["position"]


@pytest.mark.parametrize(("limit", "value"), [("max_position", 1.0), ("max_notional", 2500.0)])
def test_a_decision_beyond_a_position_limit_is_not_traded(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows], limit: str, value: float
):
    used = trader(settings(**{limit: value}))
    records = take(used, make_rows(120))
    assert {record["position"] for record in records} == {0.0}
    assert records[-1]["decision"]["action"] != "flat"
    assert records[-1]["stop"]["limit"] == limit
    assert f"would exceed {limit}" in records[-1]["notes"][0]


def test_data_that_stay_away_stop_trading_without_the_bar_that_came_too_late(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(60)
    late = [*rows[:30], *rows[35:]]
    assert take(trader(settings(stale_bars=6)), late)[-1]["kind"] == "bar"
    used = trader(settings(stale_bars=5))
    records = take(used, late)
    assert len(records) == 31
    assert records[-1]["kind"] == "stop"
    assert records[-1]["cursor"] is None
    end = rows[29]["timestamp"].isoformat()
    assert records[-1]["stop"]["message"] == f"no usable bar for 5 bar lengths after {end}"
    assert records[-1]["notes"] == [f"position kept at {used.position:g}: there is no book to close it on"]
    assert used.go_on()["notes"] == ["trading again after stale_data"]
    assert [record["kind"] for record in take(used, rows[35:])] == ["bar"] * 25


def test_going_on_where_nothing_stopped_forgives_no_drawdown(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    used = trader()
    take(used, make_rows(60))
    before = used.account
    assert before is not None
    assert before.peak > before.net_value
    assert used.go_on()["notes"] == []
    assert used.account == before


def test_ruin_ends_it_for_good(trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]):
    rows = make_rows(120)
    used = trader(PaperTradingSettings(limits=NO_LIMITS, initial_capital=5.0))
    records = take(used, rows)
    assert records[-1]["stop"]["limit"] == "ruin"
    assert records[-1]["net_value"] <= 0
    with pytest.raises(SettingsError, match="ruined account cannot trade again"):
        used.go_on()


def test_bars_before_the_start_warm_the_features_up_and_nothing_else(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows], standin: ModuleType
):
    rows = make_rows(60)
    used = trader(PaperTradingSettings(limits=NO_LIMITS, start=rows[20]["timestamp"]))
    records = take(used, rows)
    assert [record["bar_end"] for record in records] == [row["timestamp"].isoformat() for row in rows[20:]]
    assert records[0]["decision"]["tau"] == 0
    reference = standin.StandInPolicy()
    decisions = [reference.on_bar(row) for row in rows[20 - standin.WARMUP :]][standin.WARMUP :]
    assert [record["decision"]["tau"] for record in records] == [decision.tau for decision in decisions]


def test_the_state_holds_everything_even_before_the_first_trade(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(60)
    rows[20]["close"] = float("nan")
    chosen = PaperTradingSettings(limits=NO_LIMITS, start=rows[20]["timestamp"])
    whole = take(trader(chosen, delay=1), rows)
    for cut in (21, 22, 40):
        first, second = trader(chosen, delay=1), trader(chosen, delay=1)
        begun = take(first, rows[:cut])
        second.restore(json.loads(json.dumps(first.state())))
        rest = [{**record, "cursor": str(int(record["cursor"]) + cut)} for record in take(second, rows[cut:])]
        assert begun + rest == whole


def test_an_off_grid_bar_is_a_break_in_which_none_is_missing(
    trader: Callable[..., PaperTrader], make_rows: Callable[..., Rows]
):
    rows = make_rows(14)
    rows[9]["timestamp"] += timedelta(minutes=3)
    used = trader()
    records = take(used, rows)
    assert records[9]["notes"] == ["1 bars missing before", "off_grid_bar: keep"]
    assert records[10]["notes"] == []
    assert [record["decision"] is None for record in records[8:]] == [False, *[True] * 5]
