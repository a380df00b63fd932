"""A sweep over the pipeline: the settings as they are, then its trials, in this process or in many."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import optuna
import polars as pl
from optuna.trial import FrozenTrial

from archetype_dagster.artifacts import Artifact, json_hash
from archetype_dagster.compute import DeviceName
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.manifests import source_hashes
from archetype_dagster.pipeline.stages import STAGES, SWEEP_STUDY, stage_seed, stage_settings
from archetype_dagster.settings import Settings
from archetype_dagster.sweeps.book import DONE, TRIAL
from archetype_dagster.sweeps.pipeline_market import sealed_settings
from archetype_dagster.sweeps.pipeline_results import UNTUNED, PipelineSweep
from archetype_dagster.sweeps.pipeline_space import search_space, trial_settings
from archetype_dagster.sweeps.pipeline_trial import (
    RESULT_KEY,
    PipelineObjective,
    ValidationResult,
    sealed_cache,
    validated,
    validated_before,
)
from archetype_dagster.sweeps.storage import StudyStorage
from archetype_dagster.sweeps.sweeper import RLHPOSweeper
from archetype_dagster.types import JsonDict

_HOW_MANY: Final = {"sweep.trials", "sweep.jobs"}


def sweep_pipeline(market_bars: Artifact, settings: Settings, pair: str, cache: StageCache) -> PipelineSweep:
    """Judge the settings as they are, and `settings.sweep.trials` changes of them, on the validation split.

    Trials see no bar from the validation split's end on (`sealed_settings`) and share every stage that their
    settings do not change. A sweep that was stopped goes on where it was, and one of more trials goes on from
    one of fewer.

    Args:
        market_bars: all bars of the pair.
        settings: the run's settings; `settings.sweep` says what is tried.
        pair: traded pair.
        cache: where stages, results and the study's journal are kept, and what is told of the progress.

    Raises:
        SettingsError: values that no trial can draw, or a decoder that reads the future.
        SweepError: no trial was judged to the end.
        ArchetypeError: the errors of the untuned settings; of a trial where none of them succeeded.
    """
    sweep = settings.sweep
    space = search_space(sweep)
    sealed = sealed_settings(market_bars, settings, cache)
    untuned = validated(trial_settings(sealed, {}), pair, sealed_cache(cache.root, cache.device))
    name = study_name(sealed, pair)
    storage = cache.root / ".sweeps" / f"{name}.journal"
    result = RLHPOSweeper(
        name,
        sweep.trials,
        space,
        storage,
        sweep.jobs,
        seed=sweep.seed,
        sampler=sweep.sampler,
        pruner=sweep.pruner,
        progress=cache.progress,
    ).sweep(PipelineObjective(sealed, pair, cache.root, cast(DeviceName, cache.device.type)))

    runs = {UNTUNED: _facts(settings, {}, "complete", untuned.key, untuned)}
    returns = {UNTUNED: untuned.account.returns}
    for draw, trial in _tried(storage, name):
        run, key = f"trial {draw}", trial.user_attrs.get(RESULT_KEY)
        found = None if key is None else validated_before(key, settings, pair, cache)
        runs[run] = _facts(settings, trial.params, trial.state.name.lower(), key or f"{name}/{draw}", found)
        if found is not None:
            returns[run] = found.account.returns
    clock = pl.Series("timestamp", untuned.split.timestamps).dt.replace_time_zone("UTC")
    validation = pl.DataFrame([clock, *(pl.Series(run, values) for run, values in returns.items())])
    return PipelineSweep(pair, sweep.model_dump(mode="json"), runs, _failed(result.trials), validation)


def study_name(sealed: Settings, pair: str) -> str:
    """Name of the study that goes on where one over the same trials stopped: all that they depend on is in it.

    How many trials there are, and in how many processes, is not.

    Args:
        sealed: settings over the sealed bars.
        pair: traded pair.
    """
    stage = STAGES[SWEEP_STUDY]
    depends = {
        "settings": {
            name: value for name, value in stage_settings(stage, sealed, pair).items() if name not in _HOW_MANY
        },
        "bars": source_hashes(sealed, pair),
        "seed": stage_seed(stage, sealed),
        "code_version": stage.code_version,
    }
    return f"{pair}-{sealed.sweep.name}-{json_hash(depends)[:16]}"


def _tried(storage: Path, name: str) -> list[tuple[int, FrozenTrial]]:
    """The study's trials that came to an end, by draw, which unlike their number is that of an unbroken sweep."""
    study = optuna.load_study(study_name=name, storage=StudyStorage.of(storage, n_jobs=1).open())
    tried = [(int(trial.user_attrs[TRIAL]["draw"]), trial) for trial in study.get_trials(states=DONE)]
    return sorted(tried, key=lambda one: one[0])


def _failed(trials: pl.DataFrame) -> int:
    """Trials that failed and were not run again."""
    return trials.filter(pl.col("state") == "failed", ~pl.col("number").is_in(trials["retry_of"].implode())).height


def _facts(
    settings: Settings, params: dict[str, Any], state: str, key: str, found: ValidationResult | None
) -> JsonDict:
    metrics = None if found is None else found.performance.as_dict()
    return {
        "key": key,
        "account": settings.sweep.account,
        "params": params,
        "changes": settings.sweep.changes(params),
        "state": state,
        "value": None if metrics is None else metrics[settings.sweep.metric],
        "validation": metrics or {"sharpe": None},
    }
