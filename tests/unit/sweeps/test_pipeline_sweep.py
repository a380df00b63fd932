"""A sweep of the pipeline sees the validation split alone, computes once what trials share, and can be stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import optuna
import polars as pl
import pytest

from archetype_dagster.artifacts import Artifact
from archetype_dagster.errors import SealedSplitError, SettingsError, SweepError
from archetype_dagster.market.bars import book_columns
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.settings import Settings
from archetype_dagster.studies.runs import judged
from archetype_dagster.studies.training import StudyRun
from archetype_dagster.sweeps.pipeline_market import sealed_settings
from archetype_dagster.sweeps.pipeline_results import UNTUNED, PipelineSweep
from archetype_dagster.sweeps.pipeline_space import search_space, trial_settings
from archetype_dagster.sweeps.pipeline_sweep import study_name, sweep_pipeline
from archetype_dagster.sweeps.pipeline_trial import PipelineObjective, TrialProgress, sealed_cache, validated
from archetype_dagster.sweeps.storage import StudyStorage
from archetype_dagster.types import Progress

RATE = {"type": "log_uniform", "low": 1e-4, "high": 1e-2}
REFINEMENT = {"name": "test", "space": {"refinement.learning_rate": RATE}, "trials": 3, "pruner": "none"}
SELECTION = {**REFINEMENT, "space": {"selection.learning_rate": RATE}, "account": "no_refinement", "sampler": "random"}

Make = Callable[..., Settings]
CacheAt = Callable[..., StageCache]


def swept(settings: Settings, cache: StageCache) -> PipelineSweep:
    return sweep_pipeline(cache.artifact("market_bars", settings, "ETH"), settings, "ETH", cache)


def stages(root: Path) -> Counter[str]:
    return Counter(path.parent.parent.name for path in root.glob("[!.]*/*/manifest.json"))


@pytest.fixture(scope="module")
def refinement(tiny: Make, cache_at: CacheAt, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PipelineSweep]:
    root = tmp_path_factory.mktemp("swept")
    return root, swept(tiny({"sweep": REFINEMENT}), cache_at(root))


def test_trials_share_what_their_settings_do_not_change(refinement: tuple[Path, PipelineSweep]) -> None:
    shared = ("feature_table", "dp_trajectories", "vq_codebook", "archetype_returns", "selection_checkpoint")
    assert stages(refinement[0]) == {
        **dict.fromkeys(shared, 1),
        # All of them, and those without the test split.
        "market_bars": 2,
        "sealed_bars": 1,
        "refinement_checkpoint": 4,
        "sweep_trial": 4,
    }


def test_what_was_tried_is_told_with_the_settings_as_they_were(refinement: tuple[Path, PipelineSweep]) -> None:
    found = refinement[1]
    assert list(found.runs) == [UNTUNED, "trial 0", "trial 1", "trial 2"]
    assert [facts["state"] for facts in found.runs.values()] == ["complete"] * 4
    assert found.runs[UNTUNED]["changes"] == {}
    assert found.runs["trial 0"]["changes"] == found.runs["trial 0"]["params"]
    assert found.validation.columns == ["timestamp", *found.runs]
    assert found.validation.height == 3 * 144
    assert all(facts["value"] == facts["validation"]["sharpe"] for facts in found.runs.values())
    assert found.runs[found.best]["value"] == max(facts["value"] for facts in found.runs.values())


def test_the_untuned_settings_earn_on_validation_what_a_study_says(
    refinement: tuple[Path, PipelineSweep], tiny: Make, cache_at: CacheAt
) -> None:
    root, found = refinement
    whole = judged(StudyRun(tiny()), "ETH", cache_at(root / "whole"))
    assert found.runs[UNTUNED]["validation"] == whole.validation_performance().as_dict()


def test_no_bar_of_the_test_split_changes_a_value_or_a_key(tiny: Make, cache_at: CacheAt, tmp_path: Path) -> None:
    made = cache_at(tmp_path / "source").artifact("market_bars", tiny(), "ETH")
    bars, later = bars_of(made), pl.col("timestamp") >= tiny().splits.validation_end
    numbers = ["open", "high", "low", "close", "volume", *book_columns(5)]
    other = bars.with_columns(pl.when(later).then(1.5 * pl.col(name)).otherwise(name).alias(name) for name in numbers)
    results, contents = [], []
    for name, table in {"as it was": bars, "changed": other}.items():
        table.write_parquet(tmp_path / f"{name}.parquet")
        market = {"market.source": "bars", "market.path": tmp_path / f"{name}.parquet"}
        settings, cache = tiny({**market, "sweep": SELECTION}), cache_at(tmp_path / name)
        results.append(swept(settings, cache))
        contents.append(cache.artifact("market_bars", settings, "ETH").content_hash)
    assert contents[0] != contents[1]
    assert results[0].runs == results[1].runs
    assert results[0].validation.equals(results[1].validation)


def sealed(tiny: Make, cache: StageCache) -> tuple[Settings, Artifact]:
    settings = tiny({"sweep": SELECTION})
    bars = cache.artifact("market_bars", settings, "ETH")
    return sealed_settings(bars, settings, cache), bars


def test_a_trial_that_asks_for_the_test_split_is_refused(
    refinement: tuple[Path, PipelineSweep], tiny: Make, cache_at: CacheAt
) -> None:
    cache = cache_at(refinement[0])
    inside = sealed_cache(cache.root, cache.device)
    settings, _ = sealed(tiny, cache)
    bars, table = inside.artifacts(("market_bars", "feature_table"), settings, "ETH")
    assert bars_of(bars)["timestamp"].max() < settings.splits.validation_end
    with pytest.raises(SealedSplitError, match="the test split is sealed"):
        _ = splits_of(table, settings, sealed=True).test
    with pytest.raises(SealedSplitError, match="the test split is sealed"):
        judged(StudyRun(settings), "ETH", inside)
    with pytest.raises(ValueError, match="a trial needs a sealed cache"):
        validated(settings, "ETH", cache)


def test_a_sealed_cache_refuses_a_market_that_goes_on(tiny: Make, cache_at: CacheAt, tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    with pytest.raises(SealedSplitError, match="must end before"):
        validated(tiny(), "ETH", sealed_cache(cache.root, cache.device))


class Stopping:
    """A progress that stops the sweep after some trials."""

    def __init__(self, after: int) -> None:
        self.after = after

    def start(self, description: str, total: int) -> None:
        pass

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        if completed == self.after:
            raise KeyboardInterrupt

    def finish(self) -> None:
        pass


def test_a_sweep_goes_on_where_it_was_stopped_and_finds_the_same(
    refinement: tuple[Path, PipelineSweep], tiny: Make, tmp_path: Path, cache_at: Callable[[Path, Progress], StageCache]
) -> None:
    settings = tiny({"sweep": REFINEMENT})
    with pytest.raises(KeyboardInterrupt):
        swept(settings, cache_at(tmp_path, Stopping(after=2)))
    assert stages(tmp_path)["sweep_trial"] == 3
    # And a third trial had begun, whose process was killed.
    [journal] = (tmp_path / ".sweeps").glob("*.journal")
    optuna.load_study(study_name=journal.stem, storage=StudyStorage.of(journal, n_jobs=1).open()).ask()
    found = swept(settings, cache_at(tmp_path, Stopping(after=0)))
    assert (found.runs, found.best) == (refinement[1].runs, refinement[1].best)
    assert found.failed == 0
    fewer = swept(tiny({"sweep": {**REFINEMENT, "trials": 2}}), cache_at(tmp_path, Stopping(after=0)))
    assert fewer.runs == found.runs


def test_an_objective_reaches_another_process_whole(tiny: Make) -> None:
    objective = PipelineObjective(tiny({"sweep": SELECTION}), "ETH", Path("stages"), "cpu")
    assert ForkingPickler.loads(ForkingPickler.dumps(objective)) == objective


@pytest.mark.endurance
def test_two_processes_find_what_one_does(tiny: Make, cache_at: CacheAt, tmp_path: Path) -> None:
    one = swept(tiny({"sweep": SELECTION}), cache_at(tmp_path / "one"))
    two = swept(tiny({"sweep": {**SELECTION, "jobs": 2}}), cache_at(tmp_path / "two"))
    assert two.runs == one.runs
    assert two.validation.equals(one.validation)


def test_how_many_trials_there_are_is_not_in_a_studys_name_but_all_they_depend_on_is(
    tiny: Make, cache_at: CacheAt, refinement: tuple[Path, PipelineSweep]
) -> None:
    settings, _ = sealed(tiny, cache_at(refinement[0]))
    name = study_name(settings, "ETH")
    assert name == study_name(settings.changed({"sweep.trials": 9, "sweep.jobs": 2}), "ETH")
    for change in ({"seed": 1}, {"selection.alpha": 0.5}, {"execution.commission_rate": 0.0}, {"sweep.seed": 1}):
        assert name != study_name(settings.changed(change), "ETH")


def test_an_account_without_a_ratio_is_given_up_and_never_best(tiny: Make, cache_at: CacheAt, tmp_path: Path) -> None:
    # At this commission no plan trades, and so no archetype does.
    learnt = {"codebook.epochs": 10, "codebook.learning_rate": 0.02}
    settings = tiny({"sweep": {**SELECTION, "trials": 1}, "execution.commission_rate": 0.2, **learnt})
    with pytest.raises(SweepError, match="1 trials were pruned, 0 failed"):
        swept(settings, cache_at(tmp_path))


def test_a_decoder_that_reads_the_future_is_no_trial(tiny: Make) -> None:
    hindsight = {"codebook.decoder": "bilstm", "codebook.decoding": "single_change"}
    sweep = {"name": "test", "alternatives": {"decoder": {"causal": {}, "hindsight": hindsight}}}
    settings = tiny({"sweep": sweep})
    assert trial_settings(settings, {"decoder": "causal"}) == settings
    with pytest.raises(SettingsError, match="'bilstm' reads the horizon's future"):
        trial_settings(settings, {"decoder": "hindsight"})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"type": "int", "low": 4, "high": 4}, "codebook.num_codes: low must be below high"),
        ({"type": "int", "low": 4, "high": 9, "step": 2}, "codebook.num_codes: high - low must be a multiple of step"),
        ({"type": "categorical", "choices": [4, 4]}, "codebook.num_codes: choices must differ"),
    ],
)
def test_values_that_no_trial_can_draw_are_refused_with_their_setting(
    tiny: Make, values: Mapping[str, Any], reason: str
) -> None:
    sweep = tiny({"sweep": {"name": "test", "space": {"codebook.num_codes": values}}}).sweep
    with pytest.raises(SettingsError, match=reason):
        search_space(sweep)


def test_the_last_phases_validations_are_reported_and_may_end_a_trial(tiny: Make) -> None:
    settings = tiny({"refinement.evaluations": 4, "refinement.total_steps": 1_000})
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(lower=0.0))
    trial = study.ask()
    progress = TrialProgress(trial, settings)
    progress.start("selection", 1_000)
    progress.advance(500, {"validation_return": -1.0})
    progress.start("refinement", 1_000)
    progress.advance(0, {"validation_return": 0.0})
    progress.advance(500, {"validation_return": 0.6})
    assert study.trials[0].intermediate_values == {0: 0.0, 2: 0.6 / settings.planner.horizon_bars}
    with pytest.raises(optuna.TrialPruned, match="given up after 750 of 1000 steps of refinement"):
        progress.advance(750, {"validation_return": -0.6})
