"""Horizons that begin elsewhere: alignment 0 is the report's account, and no alignment sees the future."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.alignments import EQUAL_WEIGHT, QUANTILES, Alignments, alignments
from archetype_dagster.backtest.evaluation import evaluate
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.backtest.performance import mean_performance, performance
from archetype_dagster.backtest.policy import decide
from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import load_settings
from archetype_dagster.types import FLAT

HORIZON = 12


@pytest.fixture(scope="module", params=["carry", "settle"])
def setting(small_bars, small_settings, request):
    settings = small_settings(**{"execution.horizon_boundary": request.param})
    return settings, build_feature_table(small_bars, settings, "ETH")


@pytest.fixture
def policy(setting, random_policy):
    return random_policy(setting[0], features=len(FEATURE_NAMES))


@pytest.fixture
def runs(small_bars, setting, policy):
    settings, table = setting
    return alignments(small_bars, table, policy, settings, "ETH")


def test_alignment_zero_is_the_account_of_the_report(runs, small_bars, setting, policy):
    settings, table = setting
    full = evaluate(small_bars, table, policy, settings, "ETH").full
    np.testing.assert_array_equal(runs.net_values[0], full.ledger.net_value_path)
    assert runs.performances[0] == full.performance
    assert runs.trades[0] == full.ledger.trades
    assert len(runs.net_values) == HORIZON
    assert len(np.unique(runs.net_values[:, -1])) > 1


def test_the_equal_weight_is_the_account_of_sub_accounts_of_a_twelfth_each(runs, small_bars, setting, policy):
    settings, table = setting
    test = split_dataset(table.dataset(settings), settings.splits).test
    accounts = SplitAccounts(small_bars, test, settings, (settings.splits.test_start, settings.splits.test_end))
    priced = accounts.priced
    sub = replace(
        priced,
        max_position=priced.max_position / HORIZON,
        slippage=priced.slippage / HORIZON,
        commission=priced.commission / HORIZON,
    )
    total = 0.0
    for offset in range(HORIZON):
        rows = test.aligned(offset)
        placed = accounts.for_rows(rows)
        every_bar = placed.trade(decide(policy, rows).actions).action
        ledger = replay_priced(
            every_bar,
            sub,
            settings=settings.execution,
            initial_capital=runs.equal_weight[0] / HORIZON,
            horizon_starts=placed.horizon_starts,
        )
        total = total + ledger.net_value_path
    np.testing.assert_allclose(runs.equal_weight, total, rtol=1e-12)


def test_the_summary_holds_quantiles_mean_and_the_equal_weight_as_a_row_of_its_own(runs):
    summary = runs.summary()
    assert summary["row"].to_list() == [*(f"q{quantile:.2f}" for quantile in QUANTILES), "mean", EQUAL_WEIGHT]
    assert summary.columns == ["row", *METRICS, "trades"]
    returns = runs.frame()["total_return"].to_numpy()
    np.testing.assert_allclose(summary["total_return"][: len(QUANTILES)], np.quantile(returns, QUANTILES))
    whole = performance(runs.equal_weight, periods_per_year=runs.periods_per_year).as_dict()
    assert summary[METRICS][-1].to_dicts() == [{name: whole[name] for name in METRICS}]
    mean = summary.filter(pl.col("row") == "mean").to_dicts()[0]
    assert {name: mean[name] for name in METRICS} == {
        name: value for name, value in mean_performance(runs.performances).as_dict().items() if name in METRICS
    }
    assert mean["calmar"] == pytest.approx(mean["sharpe"] * mean["annual_volatility"] / mean["max_drawdown"])
    # The return of an equal weight is the mean return; its drawdown is not the mean drawdown.
    assert whole["total_return"] == pytest.approx(returns.mean())
    assert whole["max_drawdown"] < runs.frame()["max_drawdown"].max()


def test_a_ruined_alignment_stays_at_zero_in_the_equal_weight():
    ends = np.array([[100.0, 110.0, 121.0], [100.0, 0.0, 0.0]])
    times = np.array(["2024-01-01T00:10", "2024-01-01T00:20"], dtype="datetime64[us]")
    runs = Alignments(times, ends, np.array([1, 1]), 52_560, hindsight=False)
    assert runs.equal_weight.tolist() == [100.0, 55.0, 60.5]
    assert [run.ruined for run in runs.performances] == [False, True]
    assert runs.summary()["total_return"][-1] == pytest.approx(-0.395)


@pytest.mark.parametrize("offset", range(8))
def test_what_comes_later_moves_no_decision_at_any_alignment(random_dataset, random_policy, offset):
    dataset = random_dataset(segments=(50, 5, 81))
    policy = random_policy(load_settings(overrides={"planner.horizon_bars": 8}))
    generator = np.random.default_rng(offset)
    whole = decide(policy, dataset.aligned(offset)).actions
    for cut in generator.integers(offset + 1, len(dataset), size=4):
        later = np.arange(len(dataset)) >= cut
        noise = generator.normal(size=dataset.states.shape)
        other = replace(
            dataset,
            states=np.where(later[:, np.newaxis], noise, dataset.states).astype(np.float32),
            mark=np.where(later, dataset.mark * 3, dataset.mark),
        )
        kept = dataset.rows(slice(0, int(cut))).aligned(offset)
        np.testing.assert_array_equal(decide(policy, kept).actions, whole[: len(kept)])
        moved = decide(policy, other.aligned(offset)).actions
        np.testing.assert_array_equal(moved[: len(kept)], whole[: len(kept)])


def test_rows_before_a_segments_first_horizon_are_flat_and_positions_start_flat(random_dataset, random_policy):
    dataset = random_dataset(segments=(40, 3, 37))
    rows = dataset.aligned(5)
    decisions = decide(random_policy(load_settings()), rows)
    assert np.flatnonzero(np.isin(dataset.timestamps, rows.timestamps)).tolist() == [*range(5, 40), *range(48, 80)]
    assert decisions.starts.tolist() == [0, 8, 16, 24, 32, 35, 43, 51, 59]
    assert decisions.initial_actions[[0, 5]].tolist() == [FLAT, FLAT]
    for wrong in (-1, 8):
        with pytest.raises(ValueError, match=rf"offset must lie in 0\.\.7, got offset={wrong}"):
            dataset.aligned(wrong)
