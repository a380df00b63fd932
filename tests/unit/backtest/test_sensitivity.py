"""A frozen policy under other accounts: one change at a time, everything else bit for bit as in the report."""

from dataclasses import replace

import numpy as np
import pytest

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.evaluation import evaluate
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.backtest.policy import decide
from archetype_dagster.backtest.sensitivity import SENSITIVITY_SCHEMA, sensitivities
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.splits import split_dataset

SETTINGS = ("commission_rate", "depth_policy", "execution_delay_bars", "horizon_boundary", "initial_capital")


@pytest.fixture(scope="module")
def setting(small_bars, small_settings):
    settings = small_settings(
        **{
            "studies.commission_rates": (0.0, 0.001),
            "studies.delays_bars": (0, 2),
            "studies.capital_multiples": (0.2, 1.0),
        }
    )
    return settings, build_feature_table(small_bars, settings, "ETH")


@pytest.fixture
def rows(small_bars, setting, random_policy):
    settings, table = setting
    return sensitivities(small_bars, table, random_policy(settings, features=len(FEATURE_NAMES)), settings, "ETH")


def metrics(row):
    return {name: row[name] for name in (*METRICS, "ruined", "trades")}


def test_the_row_of_the_runs_own_value_is_the_account_of_the_report(rows, small_bars, setting, random_policy):
    settings, table = setting
    policy = random_policy(settings, features=len(FEATURE_NAMES))
    full = evaluate(small_bars, table, policy, settings, "ETH").full
    base = rows.filter("base")
    assert base["setting"].to_list() == list(SETTINGS)
    for row in base.to_dicts():
        assert metrics(row) == {**full.performance.as_dict(), "trades": full.ledger.trades}
    assert not rows["hindsight"].any()
    assert dict(rows.schema) == SENSITIVITY_SCHEMA


def test_a_changed_value_is_the_account_of_a_table_built_with_it(rows, small_bars, setting, random_policy):
    settings, table = setting
    span = (settings.splits.test_start, settings.splits.test_end)
    changes = {
        ("commission_rate", "0.001"): {"execution.commission_rate": 0.001},
        ("execution_delay_bars", "2"): {"execution.execution_delay_bars": 2},
        ("horizon_boundary", "settle"): {"execution.horizon_boundary": "settle"},
    }
    for (name, value), change in changes.items():
        changed = settings.changed(change)
        policy = random_policy(changed, features=len(FEATURE_NAMES))
        rebuilt = build_feature_table(small_bars, changed, "ETH", scaler=table.scaler)
        test = split_dataset(rebuilt.dataset(changed), changed.splits).test
        ledger = SplitAccounts(small_bars, test, changed, span).trade(decide(policy, test).actions)
        [row] = rows.filter(setting=name, value=value).to_dicts()
        expected = ledger.performance(settings.market.bars_per_year)
        assert metrics(row) == {**expected.as_dict(), "trades": ledger.trades}
        assert not row["base"]


def test_dearer_trading_earns_less_and_less_capital_swings_more(rows):
    free, base, dear = rows.filter(setting="commission_rate")["total_return"]
    assert free > base > dear
    small, own = rows.filter(setting="initial_capital").to_dicts()
    assert own["base"]
    assert small["trades"] <= own["trades"]
    assert small["ruined"] or small["annual_volatility"] > own["annual_volatility"]


def test_bars_that_refuse_a_depth_policy_say_so_in_its_row(rows):
    [refused] = rows.filter(setting="depth_policy", value="reject").to_dicts()
    assert refused["refused"] is not None
    assert "reject" in refused["refused"]
    assert all(refused[name] is None for name in (*METRICS, "trades"))
    assert rows.filter(setting="depth_policy", value="last_level")["refused"].to_list() == [None]
    assert rows["refused"].null_count() == len(rows) - 1


def test_rows_without_features_stay_flat_and_costs_are_those_of_the_table(small_bars, setting):
    settings, table = setting
    test = split_dataset(table.dataset(settings), settings.splits).test
    accounts = SplitAccounts(small_bars, test, settings, (settings.splits.test_start, settings.splits.test_end))
    np.testing.assert_array_equal(accounts.row_costs(), test.costs)
    wide = accounts.every_bar(np.full(len(test), 2, dtype=np.int8))
    assert (wide == 2).sum() == len(test) < len(wide)
    other = accounts.for_rows(test.aligned(5))
    assert other.priced is accounts.priced
    assert len(other.bar_rows) < len(accounts.bar_rows)
    ledger = replace(accounts.trade(np.zeros(len(test), dtype=np.int8)), ruined=False)
    path = accounts.whole_path(ledger)
    np.testing.assert_array_equal(path, ledger.net_value_path)
