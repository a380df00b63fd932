"""Phase II: the returns of every archetype, and the selector trained on them."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from assets.execution import run_stage, stage_asset
from assets.metadata import Metadata, closing_values, curves, table


@stage_asset()
def archetype_returns(
    context: dg.AssetExecutionContext, feature_table: Artifact, vq_codebook: Artifact
) -> dg.MaterializeResult[Artifact]:
    """What each archetype would have earned from each training and validation start, known exactly."""

    return run_stage(context, [feature_table, vq_codebook], describe=_describe_returns)


@stage_asset()
def selection_checkpoint(
    context: dg.AssetExecutionContext, feature_table: Artifact, archetype_returns: Artifact
) -> dg.MaterializeResult[Artifact]:
    """The policy that chooses an archetype at a horizon's start (Eq. 5), best on validation."""

    return run_stage(context, [feature_table, archetype_returns], describe=_describe_selector)


def _describe_returns(artifact: Artifact) -> Metadata:
    from archetype_dagster.selection import ArchetypeReturns

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
    from archetype_dagster.selection import Selector

    history = Selector.load(artifact.directory).history
    return {**closing_values(history, best="validation_return"), "curves": curves(history, x="steps")}
