"""Evaluation: the out-of-sample report of a pair, and the leaderboard over all pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg
import polars as pl

from archetype_dagster.artifacts import Artifact
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import Settings
from archetype_dagster.types import JsonDict
from assets.execution import current_pairs, run_stage, stage_asset, when_a_parent_changed
from assets.metadata import Metadata, picture, table
from resources.failure import clear_failure

if TYPE_CHECKING:
    from archetype_dagster.backtest.evaluation import Evaluation
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.reporting.paper import PairResults
    from archetype_dagster.reporting.plots import Curve

METRICS: Final = ("total_return", "sharpe", "calmar", "sortino", "annual_volatility", "max_drawdown")


@dataclass(frozen=True)
class _Report:
    evaluation: "Evaluation"
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

    def compute(run: "StageRun") -> _Report:
        from archetype_dagster.backtest.evaluation import evaluate
        from archetype_dagster.pipeline.inputs import bars_of, policy_of, table_of

        policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, run.settings)
        evaluation = evaluate(
            bars_of(market_bars), table_of(feature_table), policy, run.settings, run.pair, progress=run.progress
        )
        hashes = {parent.manifest.kind.replace("_", " "): parent.content_hash for parent in parents}
        return _Report(evaluation, run.settings, hashes)

    return run_stage(context, parents, compute=compute, describe=describe_report)


def describe_report(artifact: Artifact) -> Metadata:
    """Metadata of a folder that `write_report` filled: metrics, curves, and where the page is."""
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
    results: "dict[str, PairResults]"

    def save(self, directory: Path) -> None:
        from archetype_dagster.reporting import write_leaderboard

        write_leaderboard(self.metrics, directory, self.results)


@stage_asset(
    ins={
        name: dg.AssetIn(partition_mapping=dg.AllPartitionMapping())
        for name in ("evaluation_report", "method_comparison", "seed_study")
    },
    automation_condition=when_a_parent_changed(),
)
def leaderboard(
    context: dg.AssetExecutionContext,
    evaluation_report: dict[str, Artifact],
    method_comparison: dict[str, Artifact],
    seed_study: dict[str, Artifact],
) -> dg.MaterializeResult[Artifact]:
    """Every pair whose evaluation is current, and every method and seed there is, ranked; the future stands apart."""
    with clear_failure():
        current = current_pairs(context, "evaluation_report", evaluation_report)
        if not current:
            raise ArtifactError("no pair has a current evaluation; materialise evaluation_report first")
        compared = current_pairs(context, "method_comparison", method_comparison)
        seeded = current_pairs(context, "seed_study", seed_study)

    def compute(run: "StageRun") -> _Board:
        from archetype_dagster.reporting import read_metrics
        from assets.results import pair_results

        made = {
            pair: {part[pair].manifest.kind: part[pair] for part in (compared, seeded) if pair in part}
            for pair in compared
        }
        return _Board(
            {pair: read_metrics(report.directory) for pair, report in current.items()},
            {pair: pair_results(artifacts) for pair, artifacts in made.items()},
        )

    used = [artifact for part in (current, compared, seeded) for artifact in part.values()]
    return run_stage(context, used, compute=compute, describe=_describe_board)


def _describe_board(artifact: Artifact) -> Metadata:
    from archetype_dagster.reporting.leaderboard import LEADERBOARD_FILE

    frame = pl.read_parquet(artifact.path("leaderboard.parquet"))
    return {
        "dagster/row_count": frame.height,
        "pairs": ", ".join(frame["pair"].unique().sort()),
        "page": dg.MetadataValue.path(artifact.path(LEADERBOARD_FILE)),
        "board": table(frame.select("pair", "rank", "variant", "hindsight", *METRICS).to_dicts()),
    }
