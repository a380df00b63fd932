"""Phase III: when to override the archetype."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.codebook import Codebook
from archetype_dagster.refinement import Refiner, train_refiner
from archetype_dagster.selection import Selector
from assets.execution import StageRun, run_stage, stage_asset
from assets.inputs import splits_of
from assets.metadata import Metadata, closing_values, curves


@stage_asset()
def refinement_checkpoint(
    context: dg.AssetExecutionContext,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
) -> dg.MaterializeResult[Artifact]:
    """The policy that overrides the archetype at most once a horizon (Eq. 6 to 9), best on validation."""

    def compute(run: StageRun) -> Refiner:
        splits = splits_of(feature_table, run.settings)
        return train_refiner(
            splits.train,
            splits.validation,
            Codebook.load(vq_codebook.directory),
            Selector.load(selection_checkpoint.directory),
            run.settings.refinement,
            beta_1=run.settings.beta_1(run.pair),
            seed=run.settings.seed,
            device=run.device,
            resume=run.resume,
            progress=run.progress,
        )

    parents = [feature_table, vq_codebook, selection_checkpoint]
    return run_stage(context, parents, compute=compute, describe=_describe)


def _describe(artifact: Artifact) -> Metadata:
    history = Refiner.load(artifact.directory).history
    return {**closing_values(history, best="validation_return"), "curves": curves(history, x="steps")}
