"""Judging: the methods of Table 1 side by side, and the audit of what the policy traded."""

from typing import TYPE_CHECKING, cast

import dagster as dg
import polars as pl

from archetype_dagster.artifacts import Artifact, json_hash, read_json
from archetype_dagster.pipeline.stages import STAGES, baseline_stage
from archetype_dagster.settings import Settings
from archetype_dagster.settings.baseline_names import BASELINES
from assets.evaluation import METRICS
from assets.execution import Roots, StageResources, run_stage, stage_asset
from assets.metadata import Metadata, facts_table, picture, table
from assets.sweeps import sweeps_tried
from resources.storage import ArtifactStore

if TYPE_CHECKING:
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.studies.auditing import LedgerAudit
    from archetype_dagster.studies.comparison import MethodComparison
    from archetype_dagster.studies.robustness import Robustness


@stage_asset(ins={name: dg.AssetIn(dagster_type=Artifact) for name in STAGES["method_comparison"].parents})
def method_comparison(context: dg.AssetExecutionContext, **parents: Artifact) -> dg.MaterializeResult[Artifact]:
    """Every method of Table 1 on the same test bars, at the same costs and from the same capital."""

    def compute(run: "StageRun") -> "MethodComparison":
        from archetype_dagster.baselines import load_baseline
        from archetype_dagster.pipeline.inputs import bars_of, table_of
        from archetype_dagster.reporting import read_ledger, read_metrics
        from archetype_dagster.studies.comparison import compare_methods

        report = parents["evaluation_report"].directory
        return compare_methods(
            bars_of(parents["market_bars"]),
            table_of(parents["feature_table"]),
            {name: load_baseline(name, parents[baseline_stage(name)].directory) for name in BASELINES},
            read_ledger(report, commission_rate=run.settings.execution.commission_rate),
            run.settings,
            run.pair,
            hindsight=read_metrics(report)["hindsight"],
        )

    return run_stage(context, list(parents.values()), compute=compute, describe=_describe_comparison)


@stage_asset()
def trade_audit(
    context: dg.AssetExecutionContext, market_bars: Artifact, feature_table: Artifact, evaluation_report: Artifact
) -> dg.MaterializeResult[Artifact]:
    """Round trips, trade statistics and every rule of the policy's account; its signals through other engines."""

    def compute(run: "StageRun") -> "LedgerAudit":
        from archetype_dagster.pipeline.inputs import bars_of, table_of
        from archetype_dagster.reporting import read_ledger
        from archetype_dagster.studies.auditing import audit_test_ledger

        ledger = read_ledger(evaluation_report.directory, commission_rate=run.settings.execution.commission_rate)
        return audit_test_ledger(ledger, bars_of(market_bars), table_of(feature_table), run.settings, run.pair)

    parents = [market_bars, feature_table, evaluation_report]
    return run_stage(context, parents, compute=compute, describe=_describe_audit, roots=_engines)


@stage_asset()
def robustness(
    context: dg.AssetExecutionContext,
    market_bars: Artifact,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
    refinement_checkpoint: Artifact,
    method_comparison: Artifact,
    embedding_study: Artifact,
    refinement_study: Artifact,
    horizon_study: Artifact,
    code_count_study: Artifact,
    seed_study: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """Intervals, odds corrected for everything tried, and the policy under other costs, delays and beginnings."""
    phases = (vq_codebook, selection_checkpoint, refinement_checkpoint)
    studies = (embedding_study, refinement_study, horizon_study, code_count_study, seed_study)

    def compute(run: "StageRun") -> "Robustness":
        from archetype_dagster.pipeline.inputs import bars_of, policy_of, table_of
        from archetype_dagster.studies.comparison import MethodComparison
        from archetype_dagster.studies.robustness import judge_robustness
        from archetype_dagster.studies.tables import StudyTable
        from archetype_dagster.sweeps.pipeline_results import PipelineSweep

        swept = sweeps_tried(cast(StageResources, context.resources).store, run.settings, run.pair)
        return judge_robustness(
            bars_of(market_bars),
            table_of(feature_table),
            policy_of(*phases, run.settings),
            MethodComparison.load(method_comparison.directory),
            {study.manifest.kind: StudyTable.load(study.directory) for study in studies}
            | {name: PipelineSweep.load(sweep.directory) for name, sweep in swept.items()},
            run.settings,
            run.pair,
            progress=run.progress,
        )

    parents = [market_bars, feature_table, *phases, method_comparison, *studies]
    return run_stage(context, parents, compute=compute, describe=_describe_robustness, roots=_tried)


def _tried(settings: Settings, pair: str, store: ArtifactStore) -> Roots:
    """The sweeps of the pair, so that a result is judged again once more has been tried."""
    return Roots(files={name: sweep.content_hash for name, sweep in sweeps_tried(store, settings, pair).items()})


def _engines(settings: Settings, pair: str, store: ArtifactStore) -> Roots:
    """The engines to replay through, so that the audit is made again once one more is installed."""
    from archetype_dagster.backtest.crosscheck import engine_versions

    return Roots(files={f"engine {name}": json_hash(version) for name, version in engine_versions().items()})


def _describe_comparison(artifact: Artifact) -> Metadata:
    from archetype_dagster.reporting.plots import Curve, equity
    from archetype_dagster.studies.comparison import MethodComparison

    comparison = MethodComparison.load(artifact.directory)
    rows = [
        {"method": method.label, **{name: values[name] for name in METRICS}, "hindsight": method.hindsight}
        for method in comparison.methods.values()
        for values in [method.performance.as_dict()]
    ]
    curves = [
        Curve(
            name=name,
            label=method.label,
            timestamps=method.ledger.timestamps,
            net_value=method.ledger.net_value,
            initial_capital=method.ledger.initial_capital,
            hindsight=method.hindsight,
        )
        for name, method in comparison.methods.items()
    ]
    return {
        "book_source": ", ".join(comparison.facts["book_sources"]),
        "methods": table(rows),
        "equity": picture(equity(curves), "equity"),
    }


def _describe_robustness(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.robustness import ALIGNMENT_SUMMARY_FILE, ROBUSTNESS_FILE, SENSITIVITIES_FILE

    found = read_json(artifact.path(ROBUSTNESS_FILE))
    intervals = [{"metric": name, **interval} for name, interval in found["intervals"].items()]
    sharpe = {name: value for name, value in (found["sharpe"] or {}).items() if name != "estimate"}
    overfitting = found["overfitting"] or {}
    return {
        "trials": len(found["trial_names"]),
        "intervals": table(intervals),
        "sharpe_odds": facts_table(sharpe),
        "probability_of_overfitting": str(overfitting.get("pbo", "n/a")),
        "sensitivities": table(pl.read_parquet(artifact.path(SENSITIVITIES_FILE)).to_dicts()),
        "alignments": table(pl.read_parquet(artifact.path(ALIGNMENT_SUMMARY_FILE)).to_dicts()),
    }


def _describe_audit(artifact: Artifact) -> Metadata:
    from archetype_dagster.studies.auditing import AUDIT_FILE, CROSS_CHECKS_FILE, TRIPS_FILE

    audit = read_json(artifact.path(AUDIT_FILE))
    failures, rules = audit.pop("failures"), audit.pop("rules")
    trips = pl.read_parquet(artifact.path(TRIPS_FILE))
    engines = [
        {name: check[name] for name in ("engine", "version", "passed", "bars", "largest_difference", "engine_pnl")}
        for check in read_json(artifact.path(CROSS_CHECKS_FILE))
    ]
    return {
        "round_trips": trips.height,
        "rules_kept": len(rules) - len(failures),
        "rules": len(rules),
        "failures": "\n".join(failures) or "none",
        "statistics": facts_table(audit),
        "engines": table(engines),
        "largest_losses": table(
            trips.sort("net_pnl").head(5).with_columns(pl.selectors.temporal().cast(str)).to_dicts()
        ),
    }
