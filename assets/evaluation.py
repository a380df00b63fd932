"""Evaluation: the out-of-sample report of a pair, and the leaderboard over all pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import dagster as dg
import polars as pl

from archetype_dagster.artifacts import Artifact
from archetype_dagster.backtest.evaluation import Evaluation, evaluate
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.computation import StageRun
from archetype_dagster.pipeline.inputs import bars_of, policy_of, table_of
from archetype_dagster.settings import Settings
from archetype_dagster.types import JsonDict
from assets.execution import StageResources, run_stage, stage_asset
from assets.lineage import verify_current
from assets.metadata import Metadata, picture, table
from resources.failure import clear_failure

if TYPE_CHECKING:
    from archetype_dagster.reporting.plots import Curve

METRICS: Final = ("total_return", "sharpe", "calmar", "sortino", "annual_volatility", "max_drawdown")


@dataclass(frozen=True)
class _Report:
    evaluation: Evaluation
    settings: Settings
    provenance: dict[str, str]

    def save(self, directory: Path) -> None:
        from archetype_dagster.reporting import write_report

        write_report(self.evaluation, directory, settings=self.settings, provenance=self.provenance)


@stage_asset()
def evaluation_report(
    context: dg.AssetExecutionContext,
    market_bars: Artifact,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
    refinement_checkpoint: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """The policy, its parts and its bounds replayed on the test split: metrics, ledger and one HTML page."""
    parents = [market_bars, feature_table, vq_codebook, selection_checkpoint, refinement_checkpoint]

    def compute(run: StageRun) -> _Report:
        policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, run.settings)
        evaluation = evaluate(
            bars_of(market_bars), table_of(feature_table), policy, run.settings, run.pair, progress=run.progress
        )
        hashes = {parent.manifest.kind.replace("_", " "): parent.content_hash for parent in parents}
        return _Report(evaluation, run.settings, hashes)

    return run_stage(context, parents, compute=compute, describe=_describe_report)


def _describe_report(artifact: Artifact) -> Metadata:
    from archetype_dagster.reporting import read_metrics
    from archetype_dagster.reporting.plots import drawdown, equity, usage
    from archetype_dagster.reporting.report import REPORT_FILE

    summary = read_metrics(artifact.directory)
    variants = summary["variants"]
    full = variants["full"]
    rows = [
        {"variant": name, **{metric: values[metric] for metric in METRICS}, "hindsight": values["hindsight"]}
        for name, values in variants.items()
    ]
    accounts = _accounts(artifact, variants, summary["initial_capital"])
    return {
        "report": dg.MetadataValue.path(artifact.path(REPORT_FILE)),
        "test_bars": summary["bars"],
        "first_bar": summary["first_bar"],
        "last_bar": summary["last_bar"],
        "initial_capital": summary["initial_capital"],
        "book_source": ", ".join(summary["book_sources"]),
        "hindsight": summary["hindsight"],
        "metrics": table(rows),
        "equity": picture(equity(accounts), "equity"),
        "drawdown": picture(drawdown([account for account in accounts if not account.hindsight]), "drawdown"),
        "usage": picture(usage(summary["code_usage"]), "archetype usage"),
        **{metric: full[metric] for metric in METRICS if full[metric] is not None},
    }


def _accounts(artifact: Artifact, variants: JsonDict, initial_capital: float) -> "list[Curve]":
    from archetype_dagster.reporting.content import VARIANT_LABELS
    from archetype_dagster.reporting.plots import Curve

    values = pl.read_parquet(artifact.path("net_values.parquet"))
    times = values["timestamp"].dt.replace_time_zone(None).to_numpy()
    return [
        Curve(
            name=name,
            label=VARIANT_LABELS.get(name, name),
            timestamps=times[: values.height - values[name].null_count()],
            net_value=values[name].drop_nulls().to_numpy(),
            initial_capital=initial_capital,
            hindsight=variants[name]["hindsight"],
        )
        for name in values.columns
        if name != "timestamp"
    ]


@dataclass(frozen=True)
class _Board:
    metrics: dict[str, JsonDict]

    def save(self, directory: Path) -> None:
        from archetype_dagster.reporting import write_leaderboard

        write_leaderboard(self.metrics, directory)


@stage_asset(ins={"evaluation_report": dg.AssetIn(partition_mapping=dg.AllPartitionMapping())})
def leaderboard(
    context: dg.AssetExecutionContext, evaluation_report: dict[str, Artifact]
) -> dg.MaterializeResult[Artifact]:
    """Every pair whose evaluation is current, ranked by Sharpe ratio; what reads the future stands apart."""
    with clear_failure():
        current = _current(context, evaluation_report)

    def compute(run: StageRun) -> _Board:
        from archetype_dagster.reporting import read_metrics

        return _Board({pair: read_metrics(report.directory) for pair, report in current.items()})

    return run_stage(context, list(current.values()), compute=compute, describe=_describe_board)


def _current(context: dg.AssetExecutionContext, reports: Mapping[str, Artifact]) -> dict[str, Artifact]:
    resources = cast(StageResources, context.resources)
    settings = resources.settings.load()
    current, stale = {}, []
    for pair, report in sorted(reports.items()):
        try:
            verify_current("evaluation_report", pair, store=resources.store, settings=settings)
        except ArtifactError as error:
            stale.append(str(error))
            context.log.info(f"not on the leaderboard: {error}")
        else:
            current[pair] = report
    if not current:
        reasons = "; ".join(stale) or "none was made yet"
        raise ArtifactError(f"no pair has a current evaluation ({reasons}); materialise evaluation_report first")
    return current


def _describe_board(artifact: Artifact) -> Metadata:
    from archetype_dagster.reporting.leaderboard import LEADERBOARD_FILE

    frame = pl.read_parquet(artifact.path("leaderboard.parquet"))
    return {
        "dagster/row_count": frame.height,
        "pairs": ", ".join(frame["pair"].unique().sort()),
        "page": dg.MetadataValue.path(artifact.path(LEADERBOARD_FILE)),
        "board": table(frame.select("pair", "rank", "variant", "hindsight", *METRICS).to_dicts()),
    }
