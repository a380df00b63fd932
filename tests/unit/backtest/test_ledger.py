"""The ledger as a table, and the reconciliation that must catch a cooked one."""

import json
from dataclasses import replace as changed

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.ledger import reconcile
from archetype_dagster.backtest.performance import performance
from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.settings import ExecutionSettings


@pytest.fixture
def ledger(priced):
    bars = priced([100, 110, 105, 90], rate=0.01, half_spread=0.5, max_position=2.0)
    return replay_priced([2, 0, 0, 1], bars, settings=ExecutionSettings())


def test_an_honest_ledger_reconciles(ledger):
    report = reconcile(ledger)
    assert report.passed
    assert report.reward_sum == pytest.approx(report.net_value_change)
    assert report.total_fee == pytest.approx(0.01 * (200 + 440 + 180))
    assert report.total_slippage == pytest.approx(0.5 * 8)
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["passed"] is True


@pytest.mark.parametrize(
    ("field", "row", "value", "rule"),
    [
        ("reward", 1, 1e-5, "rewards sum"),
        ("net_value", 2, 1e-5, "net value is cash"),
        ("cash", 1, -1e-5, "cash moves"),
        ("position", 1, 0.5, "position is -m, 0 or m"),
        ("position", 2, 2.0, "position moves"),
        ("turnover", 1, -1.0, "turnover"),
        ("fee", 0, 1e-5, "fee is rate"),
        ("slippage", 0, -2.0, "not negative"),
        ("net_value", 1, -1e9, "positive until ruin"),
    ],
)
def test_a_cooked_ledger_does_not_reconcile(ledger, field, row, value, rule):
    cooked = getattr(ledger, field).copy()
    cooked[row] += value
    failures = reconcile(changed(ledger, **{field: cooked})).failures
    assert any(rule in failure for failure in failures), failures


@pytest.mark.parametrize("field", ["reward", "cash", "net_value", "fee"])
def test_a_hole_in_the_ledger_does_not_reconcile(ledger, field):
    holed = getattr(ledger, field).copy()
    holed[1] = np.nan
    assert not reconcile(changed(ledger, **{field: holed})).passed


def test_the_frame_has_a_row_per_bar_with_a_utc_clock(ledger):
    frame = ledger.frame()
    assert frame.height == 4
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")
    assert frame["timestamp"][0].isoformat() == "2024-01-01T00:10:00+00:00"
    assert frame.columns[1:] == [
        *("mark", "action", "position", "traded", "turnover"),
        *("fee", "slippage", "cash", "net_value", "reward"),
    ]
    assert frame["net_value"].to_list() == ledger.net_value.tolist()


def test_performance_is_that_of_the_path_from_the_initial_capital(ledger):
    path = [200.0, *ledger.net_value]
    assert ledger.net_value_path.tolist() == path
    assert ledger.performance() == performance(path, periods_per_year=52_560)
    assert ledger.performance(100.0) == performance(path, periods_per_year=100.0)
