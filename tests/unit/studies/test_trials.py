"""What was tried, counted once and laid side by side on the validation bars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from archetype_dagster.backtest.statistics import probability_of_overfitting, seed_summary
from archetype_dagster.studies.ablations import refinement_variants
from archetype_dagster.studies.results import AccountPath
from archetype_dagster.studies.runs import across_seeds, run_study
from archetype_dagster.studies.tables import StudyTable
from archetype_dagster.studies.trials import collect_trials


@pytest.fixture(scope="module")
def results(tiny, shared_cache):
    runs = run_study(across_seeds(refinement_variants(tiny()), (0, 1)), "ETH", shared_cache)
    return {f"{name} {seed}": result for (name, seed), result in runs.items()}


@pytest.fixture(scope="module")
def study(results) -> StudyTable:
    return StudyTable.of("ETH", results)


def test_trials_are_the_runs_own_accounts_on_validation(results, study):
    trials = collect_trials({"study": study})
    assert trials.returns.shape == (3 * 144, 6)
    assert len(trials.names) == len(set(trials.names)) == len(trials.sharpes) == 6
    for column, (result, sharpe) in enumerate(zip(results.values(), trials.sharpes, strict=True)):
        account = result.validation.accounts[result.run.account]
        np.testing.assert_allclose(np.prod(1 + trials.returns[:, column]), account.net_value[-1] / account.net_value[0])
        assert sharpe == result.validation_performance().sharpe
    assert probability_of_overfitting(trials.returns, groups=6, purge_bars=12).trials == 6


def test_the_same_run_in_two_studies_is_one_trial(study):
    assert collect_trials({"one": study, "again": study}).names == collect_trials({"one": study}).names


def test_trials_on_other_bars_are_refused(study):
    shorter = replace(study, validation=study.validation[1:])
    with pytest.raises(ValueError, match="must share their validation bars, one and other do not"):
        collect_trials({"one": study, "other": shorter})
    with pytest.raises(ValueError, match="at least one run"):
        collect_trials({})


def test_a_study_reads_back_as_it_was_saved(study, tmp_path):
    study.save(tmp_path)
    found = StudyTable.load(tmp_path)
    assert (found.pair, list(found.runs), found.runs) == (study.pair, list(study.runs), study.runs)
    assert found.test.equals(study.test)
    assert found.validation.equals(study.validation)


def test_the_seeds_of_a_study_feed_the_summary(results):
    returns = {seed: results[f"full {seed}"].performance().total_return for seed in (0, 1)}
    summary = seed_summary(returns, {"nothing": [-1.0]})
    assert summary.mean == pytest.approx(np.mean(list(returns.values())))
    assert summary.beats == {"nothing": 1.0}


def test_returns_end_with_ruin():
    account = AccountPath(np.zeros(3, dtype=np.int8), np.array([100.0, 50.0, 0.0, 0.0]), 1)
    assert account.returns.tolist() == [-0.5, -1.0, 0.0]
