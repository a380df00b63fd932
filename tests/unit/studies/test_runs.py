"""A study trains what a setting changes and nothing else, judges like the report, and survives being stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from archetype_dagster.backtest.evaluation import evaluate
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.pipeline.inputs import bars_of, table_of
from archetype_dagster.studies.ablations import (
    code_count_variants,
    embedding_variants,
    horizon_variants,
    refinement_variants,
)
from archetype_dagster.studies.results import StudyAccounts
from archetype_dagster.studies.runs import across_seeds, judged, run_study
from archetype_dagster.studies.training import StudyRun


def artifacts(root: Path) -> Counter[str]:
    return Counter(path.parent.parent.name for path in root.glob("[!.]*/*/manifest.json"))


def written(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.glob("[!.]*/*/manifest.json")}


class Stopping:
    """A progress that stops the process's work at the given start of a task."""

    def __init__(self, at: int) -> None:
        self.left = at

    def start(self, description: str, total: int) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        pass

    def finish(self) -> None:
        pass


def test_a_result_is_the_reports_account_on_the_same_bars(tiny, shared_cache):
    settings = tiny()
    result = judged(StudyRun(settings), "ETH", shared_cache)
    bars, table = shared_cache.artifacts(("market_bars", "feature_table"), settings, "ETH")
    policy = shared_cache.policy(settings, "ETH")
    report = evaluate(bars_of(bars), table_of(table), policy, settings, "ETH")
    for name in ("full", "no_refinement"):
        variant, account = report.variants[name], result.test.accounts[name]
        np.testing.assert_array_equal(account.net_value, variant.ledger.net_value_path)
        assert account.trades == variant.ledger.trades
        assert result.performance(name) == variant.performance
        assert account.returns == pytest.approx(np.diff(account.net_value) / account.net_value[:-1], abs=1e-15)
    assert result.performance() == report.full.performance
    assert len(result.validation.timestamps) == 3 * 144
    assert result.validation.timestamps[-1] < result.test.timestamps[0]
    assert (result.book_sources, result.hindsight) == (report.book_sources, False)
    assert result.as_dict()["settings_hash"] == settings.content_hash


def test_a_study_of_the_regret_trains_one_codebook_and_one_selector(tiny, cache_at, tmp_path):
    results = run_study(refinement_variants(tiny()), "ETH", cache_at(tmp_path))
    made = artifacts(tmp_path)
    assert made == {
        **dict.fromkeys(("market_bars", "feature_table", "dp_trajectories", "vq_codebook", "archetype_returns"), 1),
        "selection_checkpoint": 1,
        "refinement_checkpoint": 2,
        "study_result": 3,
    }
    full, base = results["full"], results["no_refinement"]
    assert list(base.test.accounts) == ["no_refinement"]
    assert base.performance() == full.performance("no_refinement")
    assert results["without_regret"].settings.beta_1("ETH") == 0
    assert len({result.key for result in results.values()}) == 3


def test_a_study_that_was_stopped_goes_on_and_ends_with_the_same_results(tiny, cache_at, tmp_path):
    study = refinement_variants(tiny())
    whole = run_study(study, "ETH", cache_at(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_study(study, "ETH", cache_at(tmp_path / "stopped", Stopping(at=8)))
    before = written(tmp_path / "stopped")
    assert 0 < artifacts(tmp_path / "stopped")["study_result"] < 3
    resumed = run_study(study, "ETH", cache_at(tmp_path / "stopped"))
    after = written(tmp_path / "stopped")
    assert before.items() < after.items()
    for name, result in whole.items():
        assert resumed[name].key == result.key
        for account, path in result.test.accounts.items():
            np.testing.assert_array_equal(resumed[name].test.accounts[account].net_value, path.net_value)
    run_study(study, "ETH", cache_at(tmp_path / "stopped"))
    assert written(tmp_path / "stopped") == after


def test_continuous_embeddings_are_judged_without_refinement(tiny, shared_cache):
    study = embedding_variants(tiny())
    assert list(study) == ["continuous", "clustered", "vq"]
    results = run_study(study, "ETH", shared_cache)
    assert all(list(result.test.accounts) == ["no_refinement"] for result in results.values())
    assert len({result.key for result in results.values()}) == 3
    with pytest.raises(SettingsError, match="'continuous' has no refinement"):
        judged(StudyRun(study["continuous"].settings), "ETH", shared_cache)


def test_seeds_train_anew_on_one_market(tiny, shared_cache):
    study = across_seeds({"full": StudyRun(tiny())}, (0, 1))
    assert list(study) == [("full", 0), ("full", 1)]
    results = run_study(study, "ETH", shared_cache)
    first, second = (result.test.accounts["full"].net_value for result in results.values())
    assert first[0] == second[0]
    assert not np.array_equal(first, second)
    assert results["full", 0].key == judged(StudyRun(tiny()), "ETH", shared_cache).key
    assert [result.settings.seed for result in results.values()] == [0, 1]


def test_the_tables_variants_change_what_their_names_say(tiny):
    horizons, counts = horizon_variants(tiny()), code_count_variants(tiny())
    assert {name: run.settings.planner.horizon_bars for name, run in horizons.items()} == {"h=6": 6, "h=12": 12}
    assert {name: run.settings.codebook.num_codes for name, run in counts.items()} == {"K=2": 2, "K=4": 4}
    assert horizons["h=12"].settings == counts["K=4"].settings == tiny()


def test_a_horizon_too_long_for_a_split_is_refused_before_training(tiny):
    with pytest.raises(
        SettingsError,
        match=r"h=300: the validation split .* holds 432 bars, a horizon of 300 needs 601",
    ):
        horizon_variants(tiny({"studies.horizons_bars": (12, 300)}))
    assert "h=215" in horizon_variants(tiny({"studies.horizons_bars": (215,)}))


def test_a_damaged_result_is_refused(tiny, shared_cache, tmp_path):
    result = judged(StudyRun(tiny()), "ETH", shared_cache)
    StudyAccounts(result.validation, result.test, result.book_sources).save(tmp_path)
    again = StudyAccounts.load(tmp_path)
    np.testing.assert_array_equal(again.test.horizon_starts, result.test.horizon_starts)
    (tmp_path / "result.json").write_text('{"test": {}}')
    with pytest.raises(ArtifactError, match="lacks 'validation'"):
        StudyAccounts.load(tmp_path)
