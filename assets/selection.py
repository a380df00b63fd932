"""Phase II: the returns of every archetype, and the selector trained on them."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.codebook import Codebook
from archetype_dagster.selection import ArchetypeReturns, Selector, build_archetype_returns, train_selector
from assets.execution import StageRun, run_stage, stage_asset
from assets.inputs import splits_of
from assets.metadata import Metadata, closing_values, curves, table


@stage_asset()
def archetype_returns(
    context: dg.AssetExecutionContext, feature_table: Artifact, vq_codebook: Artifact
) -> dg.MaterializeResult[Artifact]:
    """What each archetype would have earned from each training and validation start, known exactly."""

    def compute(run: StageRun) -> ArchetypeReturns:
        splits = splits_of(feature_table, run.settings)
        return build_archetype_returns(
            splits.train,
            splits.validation,
            Codebook.load(vq_codebook.directory),
            run.settings.planner,
            run.settings.selection,
            device=run.device,
            progress=run.progress,
        )

    return run_stage(context, [feature_table, vq_codebook], compute=compute, describe=_describe_returns)


@stage_asset()
def selection_checkpoint(
    context: dg.AssetExecutionContext, feature_table: Artifact, archetype_returns: Artifact
) -> dg.MaterializeResult[Artifact]:
    """The policy that chooses an archetype at a horizon's start (Eq. 5), best on validation."""

    def compute(run: StageRun) -> Selector:
        splits = splits_of(feature_table, run.settings)
        return train_selector(
            splits.train,
            splits.validation,
            ArchetypeReturns.load(archetype_returns.directory),
            run.settings.selection,
            horizon_bars=run.settings.planner.horizon_bars,
            seed=run.settings.seed,
            device=run.device,
            resume=run.resume,
            progress=run.progress,
        )

    return run_stage(context, [feature_table, archetype_returns], compute=compute, describe=_describe_selector)


def _describe_returns(artifact: Artifact) -> Metadata:
    returns = ArchetypeReturns.load(artifact.directory)
    rows = []
    for name, part in (("train", returns.train), ("validation", returns.validation)):
        for code in range(returns.num_codes):
            earned = part.returns[:, code]
            rows.append(
                {
                    "split": name,
                    "archetype": code,
                    "mean %": float(earned.mean()),
                    "std %": float(earned.std()),
                    "label share": float((part.labels == code).mean()),
                }
            )
    return {
        "train_starts": len(returns.train),
        "validation_starts": len(returns.validation),
        "best_possible_train_percent": float(returns.train.returns.max(axis=1).mean()),
        "returns_per_horizon": table(rows),
    }


def _describe_selector(artifact: Artifact) -> Metadata:
    history = Selector.load(artifact.directory).history
    return {**closing_values(history, best="validation_return"), "curves": curves(history, x="steps")}
