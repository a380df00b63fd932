"""Studies: the policy trained again under other settings, seeds and dates, sharing every stage they do not change."""

import warnings
from typing import TYPE_CHECKING, cast

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.pipeline.stages import WALK_FORWARD_WINDOW
from assets.evaluation import METRICS
from assets.execution import StageResources, partition_of, run_stage, stage_asset
from assets.metadata import Metadata, picture, table

if TYPE_CHECKING:
    from archetype_dagster.pipeline.cache import StageCache
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.studies.seeds import SeedStudy
    from archetype_dagster.studies.tables import StudyTable
    from archetype_dagster.studies.windows import WalkForward

with warnings.catch_warnings():
    # The mapping of a pair to all its windows is one that Dagster calls beta.
    warnings.simplefilter("ignore", dg.BetaWarning)
    _EVERY_WINDOW = dg.MultiToSingleDimensionPartitionMapping("pair")

_TITLES = {
    "embedding_study": "Table 2: what Phase I learns, judged without refinement.",
    "refinement_study": "Table 3 and Figure 3: without refinement, without regret, and the full method.",
    "horizon_study": "Table 4: lengths of the horizon.",
    "code_count_study": "Table 4: numbers of archetypes.",
}


def _cache(context: dg.AssetExecutionContext, run: "StageRun") -> "StageCache":
    from archetype_dagster.pipeline.cache import StageCache

    store = cast(StageResources, context.resources).store
    return StageCache(store.shared_stages, run.device, run.progress, published=store.directory)


def _study(name: str) -> dg.AssetsDefinition:
    def study(
        context: dg.AssetExecutionContext, market_bars: Artifact, refinement_checkpoint: Artifact
    ) -> dg.MaterializeResult[Artifact]:
        def compute(run: "StageRun") -> "StudyTable":
            from archetype_dagster.studies.runs import run_study
            from archetype_dagster.studies.tables import STUDIES, StudyTable

            return StudyTable.of(run.pair, run_study(STUDIES[name](run.settings), run.pair, _cache(context, run)))

        return run_stage(context, [market_bars, refinement_checkpoint], compute=compute, describe=_describe_study)

    study.__name__, study.__doc__ = name, _TITLES[name]
    return stage_asset()(study)


STUDY_ASSETS = tuple(_study(name) for name in _TITLES)


@stage_asset()
def seed_study(
    context: dg.AssetExecutionContext,
    market_bars: Artifact,
    refinement_checkpoint: Artifact,
    method_comparison: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """The policy and every baseline that draws, once per seed, with the share of seeds that beats each."""

    def compute(run: "StageRun") -> "SeedStudy":
        from archetype_dagster.studies.comparison import MethodComparison
        from archetype_dagster.studies.seeds import seed_study as run_seeds

        comparison = MethodComparison.load(method_comparison.directory)
        return run_seeds(run.settings, run.pair, comparison, _cache(context, run))

    parents = [market_bars, refinement_checkpoint, method_comparison]
    return run_stage(context, parents, compute=compute, describe=_describe_seeds)


@stage_asset()
def walk_forward_window(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """The policy trained before one window of the test span; a backfill trains the windows on many workers."""
    _, window = partition_of(context)

    def compute(run: "StageRun") -> "StudyTable":
        from archetype_dagster.studies.runs import run_study
        from archetype_dagster.studies.tables import StudyTable
        from archetype_dagster.studies.training import StudyRun
        from archetype_dagster.studies.walk_forward import window_settings

        runs = {f"window={window}": StudyRun(window_settings(run.settings, int(str(window)) - 1))}
        return StudyTable.of(run.pair, run_study(runs, run.pair, _cache(context, run)))

    return run_stage(context, [market_bars], compute=compute, describe=_describe_study)


@stage_asset(deps=[dg.AssetDep(WALK_FORWARD_WINDOW, partition_mapping=_EVERY_WINDOW)])
def walk_forward(context: dg.AssetExecutionContext, market_bars: Artifact) -> dg.MaterializeResult[Artifact]:
    """The windows' accounts stitched into one; windows that were not trained yet are trained here."""

    def compute(run: "StageRun") -> "WalkForward":
        from archetype_dagster.studies.windows import walk_forward as run_windows

        return run_windows(run.settings, run.pair, _cache(context, run))

    return run_stage(context, [market_bars], compute=compute, describe=_describe_walk)


def _describe_study(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.tables import StudyTable

    study = StudyTable.load(artifact.directory)
    rows = [{"run": name, **{metric: facts[metric] for metric in METRICS}} for name, facts in study.runs.items()]
    return {"runs": table(rows), "net_value": picture(_equity(study), "net value")}


def _describe_seeds(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.seeds import SeedStudy

    study = SeedStudy.load(artifact.directory)
    spreads = [
        {"metric": name, **{key: value for key, value in spread.items() if key != "beats"}}
        for name, spread in study.summary.items()
    ]
    beats = [{"method": name, "share": share} for name, share in study.summary["sharpe"]["beats"].items()]
    return {**_describe_study(artifact), "spread": table(spreads), "seeds_ahead_by_sharpe": table(beats)}


def _describe_walk(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.windows import WalkForward

    walk = WalkForward.load(artifact.directory)
    rows = [
        {"window": window["window"], **{metric: window[metric] for metric in METRICS}}
        for window in walk.facts["windows"]
    ]
    stitched = walk.facts["metrics"]
    return {"windows": table(rows), **{name: stitched[name] for name in METRICS if stitched[name] is not None}}


def _equity(study: "StudyTable") -> bytes:
    from archetype_dagster.reporting.plots import Curve, equity

    times = study.test["timestamp"].dt.replace_time_zone(None).to_numpy()
    return equity(
        [
            Curve(
                name=name,
                label=name,
                timestamps=times,
                net_value=study.test[name].to_numpy(),
                initial_capital=facts["initial_capital"],
                hindsight=facts["hindsight"],
            )
            for name, facts in study.runs.items()
        ]
    )
