"""Phase III: when to override the archetype."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from assets.execution import run_stage, stage_asset
from assets.metadata import Metadata, closing_values, curves


@stage_asset()
def refinement_checkpoint(
    context: dg.AssetExecutionContext,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """The policy that overrides the archetype at most once a horizon (Eq. 6 to 9), best on validation."""

    parents = [feature_table, vq_codebook, selection_checkpoint]
    return run_stage(context, parents, describe=_describe)


def _describe(artifact: Artifact) -> Metadata:
    from archetype_dagster.refinement import Refiner

    history = Refiner.load(artifact.directory).history
    return {**closing_values(history, best="validation_return"), "curves": curves(history, x="steps")}
