"""Sweeps: many changes of the phases' settings, judged on the validation split, and the best of them."""

from typing import TYPE_CHECKING, Final, cast

import dagster as dg

from archetype_dagster.artifacts import SUPERSEDED_FOLDER, Artifact, Manifest, open_artifact, read_manifest
from archetype_dagster.pipeline.stages import MARKET_BARS, STAGES, SWEEP_STUDY, stage_settings
from archetype_dagster.settings import Settings
from assets.execution import StageResources, run_identity, run_stage, stage_asset
from assets.metadata import Metadata, facts_table, table
from resources.storage import ArtifactStore

if TYPE_CHECKING:
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.sweeps.pipeline_results import BestSettings, PipelineSweep

_SAME_BARS: Final = ("splits.validation_start", "splits.validation_end")
_SHOWN: Final = 20


@stage_asset()
def sweep_study(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """Trials of other settings of the three phases, none of which can see the test split."""

    def compute(run: "StageRun") -> "PipelineSweep":
        from archetype_dagster.pipeline.cache import StageCache
        from archetype_dagster.sweeps.pipeline_sweep import sweep_pipeline

        store = cast(StageResources, context.resources).store
        cache = StageCache(store.shared_stages, run.device, run.progress)
        return sweep_pipeline(market_bars, run.settings, run.pair, cache)

    made = run_stage(context, [market_bars], compute=compute, describe=_describe_sweep)
    if not (made.metadata or {})["reused"]:
        _record_trials(context, made.value)
    return made


@stage_asset()
def best_settings(context: dg.AssetExecutionContext, sweep_study: Artifact) -> dg.MaterializeResult[Artifact]:
    """The settings of the sweep's best trial, for `archetype run --tuned` and for the launchpad."""

    def compute(run: "StageRun") -> "BestSettings":
        from archetype_dagster.sweeps.pipeline_results import BestSettings, PipelineSweep

        return BestSettings.of(PipelineSweep.load(sweep_study.directory))

    return run_stage(context, [sweep_study], compute=compute, describe=_describe_best)


def sweeps_tried(store: ArtifactStore, settings: Settings, pair: str) -> dict[str, Artifact]:
    """Every sweep made on the pair's present bars and validation dates, earlier ones too, by a name.

    What was tried counts against the winner, also where the sweep has been made again with other trials since.

    Raises:
        ArtifactError: there are no bars, or a sweep's files are damaged.
    """
    bars = read_manifest(store.directory(MARKET_BARS, pair), kind=MARKET_BARS)
    wanted = stage_settings(STAGES[SWEEP_STUDY], settings, pair)

    def counts(made: Manifest) -> bool:
        same = all(made.settings.get(name) == wanted[name] for name in _SAME_BARS)
        return same and made.data_fingerprint == bars.content_hash

    newest = store.directory(SWEEP_STUDY, pair)
    found = {}
    for folder in (newest, *sorted((newest.parent / SUPERSEDED_FOLDER).glob(f"{SWEEP_STUDY}-*"))):
        if folder.exists() and counts(made := read_manifest(folder, kind=SWEEP_STUDY)):
            found[f"sweep {made.settings['sweep.name']} {made.key[:12]}"] = open_artifact(folder, kind=SWEEP_STUDY)
    return found


def _record_trials(context: dg.AssetExecutionContext, artifact: Artifact) -> None:
    """A tracked run for each trial, inside that of the sweep."""
    from archetype_dagster.sweeps.pipeline_results import PipelineSweep

    resources = cast(StageResources, context.resources)
    found = PipelineSweep.load(artifact.directory)
    parent = run_identity(context)
    for name, facts in found.runs.items():
        with resources.tracking.run(
            identity=f"{parent}/{name}",
            name=f"{found.pair} {found.sweep['name']} {name}",
            tags={"asset": SWEEP_STUDY, "pair": found.pair, "trial": name, "state": facts["state"]},
            result_root=resources.store.path,
            parent=parent,
        ) as tracker:
            tracker.log_params(facts["params"])
            tracker.log_metrics({name: value for name, value in facts["validation"].items() if value is not None})


def _describe_sweep(artifact: Artifact) -> Metadata:
    from archetype_dagster.sweeps.pipeline_results import PipelineSweep

    found = PipelineSweep.load(artifact.directory)
    metric = found.sweep["metric"]
    judged = {name: facts for name, facts in found.runs.items() if facts["value"] is not None}
    ranked = sorted(judged.items(), key=lambda run: float(run[1]["value"]), reverse=True)[:_SHOWN]
    return {
        "tried": len(found.runs),
        "pruned": [facts["state"] for facts in found.runs.values()].count("pruned"),
        "failed": found.failed,
        "best": found.best,
        "trials": table(
            [{"run": name, metric: facts["value"], "changes": str(facts["changes"])} for name, facts in ranked]
        ),
    }


def _describe_best(artifact: Artifact) -> Metadata:
    from archetype_dagster.sweeps.pipeline_results import BestSettings

    best = BestSettings.load(artifact.directory)
    return {
        "overrides": facts_table(best.overrides),
        f"validation_{best.sweep['metric']}": best.value,
        "untuned": str(best.untuned),
        "trials": best.trials,
    }
