"""The baselines of Table 1, one asset each, fitted on the same splits and costs as the policy."""

import dagster as dg

from archetype_dagster.artifacts import Artifact, read_table
from archetype_dagster.pipeline.stages import baseline_stage
from archetype_dagster.settings.baseline_names import BASELINES
from assets.execution import run_stage, stage_asset
from assets.metadata import Metadata, curves


def _baseline(name: str) -> dg.AssetsDefinition:
    def fitted(context: dg.AssetExecutionContext, feature_table: Artifact) -> dg.MaterializeResult[Artifact]:
        return run_stage(context, [feature_table], describe=_describe)

    label, kind = BASELINES[name].label, "trained" if BASELINES[name].is_learner else "fitted"
    fitted.__name__ = baseline_stage(name)
    fitted.__doc__ = f"{label}, {kind} on the training split, its best on validation kept."
    return stage_asset()(fitted)


def _describe(artifact: Artifact) -> Metadata:
    from archetype_dagster.rl.network_files import HISTORY_FILE

    files = sorted(artifact.manifest.files)
    facts: Metadata = {
        "files": ", ".join(files),
        "bytes": sum(artifact.path(name).stat().st_size for name in files),
    }
    if HISTORY_FILE in files:
        history = read_table(artifact.path(HISTORY_FILE)).with_row_index("validation")
        facts["curves"] = curves(history, x="validation", skip=("updates", "steps"))
    return facts


BASELINE_ASSETS = tuple(_baseline(name) for name in BASELINES)
