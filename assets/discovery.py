"""Phase I: hindsight demonstrations, and the codebook that compresses them into archetypes."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.types import FLAT, LONG, SHORT
from assets.execution import run_stage, stage_asset
from assets.metadata import Metadata, curves, picture


@stage_asset()
def dp_trajectories(context: dg.AssetExecutionContext, feature_table: Artifact) -> dg.MaterializeResult[Artifact]:
    """Training horizons with the best single trade that hindsight finds in each (Algorithm 1)."""

    return run_stage(context, [feature_table], describe=_describe_trajectories)


@stage_asset()
def vq_codebook(
    context: dg.AssetExecutionContext, feature_table: Artifact, dp_trajectories: Artifact
) -> dg.MaterializeResult[Artifact]:
    """Encoder, codes and decoder trained on the demonstrations (Eq. 1 to 4): the archetypes."""

    return run_stage(context, [feature_table, dp_trajectories], describe=_describe_codebook)


def _describe_trajectories(artifact: Artifact) -> Metadata:
    from archetype_dagster.planning import Trajectories

    trajectories = Trajectories.load(artifact.directory)
    return {
        "trajectories": len(trajectories),
        "horizon_bars": trajectories.horizon_bars,
        "share_with_a_trade": float((trajectories.actions != FLAT).any(axis=1).mean()),
        "share_long": float((trajectories.actions == LONG).any(axis=1).mean()),
        "share_short": float((trajectories.actions == SHORT).any(axis=1).mean()),
        "first_start": str(trajectories.timestamps[0]),
        "last_start": str(trajectories.timestamps[-1]),
        "mean_reward_quote_units": float(trajectories.rewards.sum(axis=1).mean()),
    }


def _describe_codebook(artifact: Artifact) -> Metadata:
    from archetype_dagster.codebook import Codebook
    from archetype_dagster.reporting.plots import usage

    codebook = Codebook.load(artifact.directory)
    last = codebook.history.row(-1, named=True)
    spread = codebook.usage
    return {
        "epochs": codebook.history.height,
        "hindsight": codebook.hindsight,
        "used_codes": spread.used,
        "perplexity": spread.perplexity,
        "alarm": spread.alarm,
        **{name: last[name] for name in ("loss", "reconstruction", "validation_accuracy") if last[name] is not None},
        "curves": curves(codebook.history, x="epoch"),
        "usage": picture(usage(spread.counts, title="How often each code was used in the last epoch"), "code usage"),
    }
