"""Watching: the trained policy on the newest bars, and the checks that warn when these are not what it learned."""

import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import dagster as dg
import polars as pl

from archetype_dagster.artifacts import Artifact, read_json
from archetype_dagster.pipeline.stages import RAW_BARS, RECENT_EVALUATION
from assets.checks import stage_check
from assets.evaluation import describe_report
from assets.execution import StageResources, run_stage, stage_asset, when_a_parent_changed
from assets.market import bars_roots
from assets.metadata import Metadata, table

if TYPE_CHECKING:
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.studies.recent import RecentEvaluation

with warnings.catch_warnings():
    # The mapping of a pair to all its months is one that Dagster calls beta.
    warnings.simplefilter("ignore", dg.BetaWarning)
    _EVERY_MONTH = dg.MultiToSingleDimensionPartitionMapping("pair")

_SHOWN_FEATURES: Final = 12


@dataclass(frozen=True)
class _Report:
    recent: "RecentEvaluation"
    provenance: dict[str, str]

    def save(self, directory: Path) -> None:
        from archetype_dagster.reporting import write_report

        write_report(self.recent.evaluation, directory, settings=self.recent.settings, provenance=self.provenance)
        self.recent.save(directory)


@stage_asset(
    deps=[dg.AssetDep(RAW_BARS, partition_mapping=_EVERY_MONTH)],
    automation_condition=when_a_parent_changed(),
    freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=48), warn_window=timedelta(hours=30)),
)
def recent_evaluation(
    context: dg.AssetExecutionContext,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
    refinement_checkpoint: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """The trained policy on the newest bars of the source, without training again, and how far these have drifted."""
    parents = [feature_table, vq_codebook, selection_checkpoint, refinement_checkpoint]

    def compute(run: "StageRun") -> _Report:
        from archetype_dagster.pipeline.computation import newest_bars
        from archetype_dagster.pipeline.inputs import policy_of, table_of
        from archetype_dagster.studies.recent import evaluate_recent

        store = cast(StageResources, context.resources).store
        bars = newest_bars(run, bars_roots(run.settings, run.pair, store).parts)
        policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, run.settings)
        trained = table_of(feature_table)
        recent = evaluate_recent(bars, trained, policy, run.settings, run.pair, progress=run.progress)
        hashes = {parent.manifest.kind.replace("_", " "): parent.content_hash for parent in parents}
        return _Report(recent, hashes)

    # Newer bars are what it is about: the policy need not be made from them.
    return run_stage(context, parents, compute=compute, describe=_describe, roots=bars_roots, accepted=[feature_table])


def _describe(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.recent import DRIFT_FILE, FACTS_FILE

    facts = read_json(artifact.path(FACTS_FILE))
    drift = pl.read_parquet(artifact.path(DRIFT_FILE))
    usage = [
        {"archetype": code, "training": old, "recent": new}
        for code, (old, new) in enumerate(zip(facts["training_usage"], facts["recent_usage"], strict=True))
    ]
    return {
        **describe_report(artifact),
        "newest_bar": facts["newest_bar"],
        "largest_psi": float(drift["psi"][0]),
        "feature_drift": table(drift.head(_SHOWN_FEATURES).to_dicts()),
        "archetype_use": table(usage),
    }


@stage_check(RECENT_EVALUATION, blocking=False)
def features_as_trained(context: dg.AssetCheckExecutionContext, recent_evaluation: Artifact) -> dg.AssetCheckResult:
    """The newest bars' features are distributed as in the training split; warns, as markets do change."""
    from archetype_dagster.studies.recent import DRIFT_FILE

    limits = _operations(context)
    drift = pl.read_parquet(recent_evaluation.path(DRIFT_FILE))
    drifted = drift.filter(pl.col("psi") > limits.psi_limit)
    share = drifted.height / drift.height
    names = ", ".join(drifted["feature"].head(5))
    text = f"{drifted.height} of {drift.height} features are over {limits.psi_limit}" + (f": {names}" if names else "")
    return _warning(
        share < limits.drifted_share,
        text,
        {"share": share, "drift": table(drift.head(_SHOWN_FEATURES).to_dicts())},
    )


@stage_check(RECENT_EVALUATION, blocking=False)
def archetypes_as_trained(context: dg.AssetCheckExecutionContext, recent_evaluation: Artifact) -> dg.AssetCheckResult:
    """The policy chooses its archetypes about as often on the newest bars as on the training split."""
    from archetype_dagster.studies.recent import FACTS_FILE

    facts = read_json(recent_evaluation.path(FACTS_FILE))
    odds, psi = float(facts["usage_odds"]), float(facts["usage_psi"])
    text = f"odds {odds:.2g} that the choice of archetypes is that of training, stability index {psi:.2f}"
    return _warning(odds >= _operations(context).usage_significance, text, {"odds": odds, "psi": psi})


@stage_check(RECENT_EVALUATION, blocking=False)
def bars_fresh(context: dg.AssetCheckExecutionContext, recent_evaluation: Artifact) -> dg.AssetCheckResult:
    """The newest bar is young enough; a source that ended long ago is always stale."""
    from archetype_dagster.studies.recent import FACTS_FILE

    newest = datetime.fromisoformat(read_json(recent_evaluation.path(FACTS_FILE))["newest_bar"])
    hours = (datetime.now(UTC) - newest).total_seconds() / 3600
    limit = _operations(context).stale_hours
    return _warning(
        hours <= limit, f"the newest bar is {hours:.0f} hours old, the limit is {limit:g}", {"hours": hours}
    )


def _operations(context: dg.AssetCheckExecutionContext) -> Any:
    return cast(StageResources, context.resources).settings.load().operations


def _warning(passed: bool, text: str, facts: Metadata) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed, severity=dg.AssetCheckSeverity.WARN, description=text, metadata=cast(Any, facts)
    )


MONITORING_CHECKS: Final = (features_as_trained, archetypes_as_trained, bars_fresh)
