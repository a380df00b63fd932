"""The paper's tables over all pairs: ours beside the printed ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import dagster as dg

from archetype_dagster.artifacts import Artifact, git_revision
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.stages import PAPER_PARTS
from assets.execution import StageResources, current_pairs, run_stage, stage_asset
from assets.metadata import Metadata
from resources.failure import clear_failure

if TYPE_CHECKING:
    from archetype_dagster.pipeline.computation import StageRun
    from archetype_dagster.reporting.paper import PairResults

ByPair = dict[str, Artifact]
_ALL_PAIRS = {
    name: dg.AssetIn(partition_mapping=dg.AllPartitionMapping())
    for name in ("evaluation_report", "method_comparison", *PAPER_PARTS)
}


@dataclass(frozen=True)
class _Tables:
    results: "Mapping[str, PairResults]"
    profile: str

    def save(self, directory: Path) -> None:
        from archetype_dagster.reporting.paper import write_paper_tables

        revision = git_revision()
        provenance = {} if revision is None else {"commit": revision}
        write_paper_tables(self.results, directory, profile=self.profile, provenance=provenance)


@stage_asset(ins=_ALL_PAIRS)
def paper_tables(
    context: dg.AssetExecutionContext,
    evaluation_report: ByPair,
    method_comparison: ByPair,
    robustness: ByPair,
    embedding_study: ByPair,
    refinement_study: ByPair,
    horizon_study: ByPair,
    code_count_study: ByPair,
    seed_study: ByPair,
    walk_forward: ByPair,
) -> dg.MaterializeResult[Artifact]:
    """Tables 1 to 4 and Figures 2 and 3 of the paper with ours beside them, and how certain ours are."""
    optional = (
        robustness,
        embedding_study,
        refinement_study,
        horizon_study,
        code_count_study,
        seed_study,
        walk_forward,
    )
    with clear_failure():
        compared = current_pairs(context, "method_comparison", method_comparison)
        reports = current_pairs(context, "evaluation_report", evaluation_report)
        parts = [current_pairs(context, kind, made) for kind, made in zip(PAPER_PARTS, optional, strict=True)]
        if not compared:
            raise ArtifactError("no pair has a current comparison of methods; materialise method_comparison first")

    def compute(run: "StageRun") -> _Tables:
        from assets.results import pair_results

        found = {
            pair: {part[pair].manifest.kind: part[pair] for part in (compared, reports, *parts) if pair in part}
            for pair in compared
        }
        results = {pair: pair_results(made) for pair, made in found.items()}
        return _Tables(results, cast(StageResources, context.resources).settings.name)

    used: Sequence[Artifact] = [made for part in (compared, reports, *parts) for made in part.values()]
    return run_stage(context, used, compute=compute, describe=_describe)


def _describe(artifact: Artifact) -> Metadata:
    from archetype_dagster.reporting.paper.tables import TABLES_MARKDOWN, TABLES_PAGE

    return {
        "page": dg.MetadataValue.path(artifact.path(TABLES_PAGE)),
        "tables": dg.MetadataValue.md(artifact.path(TABLES_MARKDOWN).read_text(encoding="utf-8")),
    }
