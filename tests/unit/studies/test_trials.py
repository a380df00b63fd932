"""What was tried, counted once and laid side by side on the validation bars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from archetype_dagster.backtest.statistics import probability_of_overfitting, seed_summary
from archetype_dagster.studies.ablations import refinement_variants
from archetype_dagster.studies.results import AccountPath
from archetype_dagster.studies.runs import across_seeds, run_study
from archetype_dagster.studies.trials import collect_trials, performances_by_seed


@pytest.fixture(scope="module")
def results(tiny, shared_cache):
    return run_study(across_seeds(refinement_variants(tiny()), (0, 1)), "ETH", shared_cache)


def test_trials_are_the_runs_own_accounts_on_validation(results):
    trials = collect_trials(results)
    assert trials.returns.shape == (3 * 144, 6)
    assert len(trials.names) == len(set(trials.names)) == len(trials.sharpes) == 6
    for column, (result, sharpe) in enumerate(zip(results.values(), trials.sharpes, strict=True)):
        account = result.validation.accounts[result.run.account]
        np.testing.assert_allclose(np.prod(1 + trials.returns[:, column]), account.net_value[-1] / account.net_value[0])
        assert sharpe == result.validation_performance().sharpe
    assert probability_of_overfitting(trials.returns, groups=6, purge_bars=12).trials == 6


def test_the_same_run_under_two_names_is_one_trial(results):
    twice = {**results, ("again", 0): results["full", 0]}
    assert collect_trials(twice).names == collect_trials(results).names


def test_trials_on_other_bars_are_refused(results):
    one, other = results["full", 0], results["full", 1]
    shorter = replace(other.validation, timestamps=other.validation.timestamps[1:])
    with pytest.raises(ValueError, match="must share their validation bars"):
        collect_trials({"one": one, "other": replace(other, validation=shorter)})
    with pytest.raises(ValueError, match="at least one result"):
        collect_trials({})


def test_metrics_by_seed_feed_the_summary(results):
    table = performances_by_seed(results)
    assert {name: sorted(runs) for name, runs in table.items()} == {
        "no_refinement": [0, 1],
        "without_regret": [0, 1],
        "full": [0, 1],
    }
    returns = {seed: run.total_return for seed, run in table["full"].items()}
    summary = seed_summary(returns, {"nothing": -1.0})
    assert summary.mean == pytest.approx(np.mean(list(returns.values())))
    assert summary.beats == {"nothing": 1.0}


def test_returns_end_with_ruin():
    account = AccountPath(np.zeros(3, dtype=np.int8), np.array([100.0, 50.0, 0.0, 0.0]), 1)
    assert account.returns.tolist() == [-0.5, -1.0, 0.0]
