"""Phase I: hindsight demonstrations, and the codebook that compresses them into archetypes."""

import dagster as dg

from archetype_dagster.artifacts import Artifact
from archetype_dagster.codebook import Codebook, train_codebook
from archetype_dagster.planning import Trajectories, build_trajectories
from archetype_dagster.types import FLAT, LONG, SHORT
from assets.execution import StageRun, run_stage, stage_asset
from assets.inputs import splits_of
from assets.metadata import Metadata, curves, picture


@stage_asset()
def dp_trajectories(context: dg.AssetExecutionContext, feature_table: Artifact) -> dg.MaterializeResult[Artifact]:
    """Training horizons with the best single trade that hindsight finds in each (Algorithm 1)."""

    def compute(run: StageRun) -> Trajectories:
        return build_trajectories(
            splits_of(feature_table, run.settings).train,
            run.settings.planner,
            seed=run.settings.seed,
            progress=run.progress,
        )

    return run_stage(context, [feature_table], compute=compute, describe=_describe_trajectories)


@stage_asset()
def vq_codebook(
    context: dg.AssetExecutionContext, feature_table: Artifact, dp_trajectories: Artifact
) -> dg.MaterializeResult[Artifact]:
    """Encoder, codes and decoder trained on the demonstrations (Eq. 1 to 4): the archetypes."""

    def compute(run: StageRun) -> Codebook:
        return train_codebook(
            splits_of(feature_table, run.settings).train,
            Trajectories.load(dp_trajectories.directory),
            run.settings.codebook,
            seed=run.settings.seed,
            device=run.device,
            resume=run.resume,
            progress=run.progress,
        )

    return run_stage(context, [feature_table, dp_trajectories], compute=compute, describe=_describe_codebook)


def _describe_trajectories(artifact: Artifact) -> Metadata:
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
