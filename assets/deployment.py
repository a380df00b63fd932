"""Deployment: the trained policy as an ONNX bundle."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import dagster as dg

from archetype_dagster.artifacts import Artifact, retire_artifact
from assets.execution import StageResources, run_stage, stage_asset
from assets.metadata import Metadata, facts_table, table

if TYPE_CHECKING:
    from archetype_dagster.backtest.policy import TradingPolicy
    from archetype_dagster.market.scaler import FeatureScaler
    from archetype_dagster.pipeline.computation import StageRun

HINDSIGHT_REASON = "skipped: the decoder reads the horizon's future (hindsight), so the policy is not exported"
_STATED = (
    "schema_version",
    "opset",
    "horizon_bars",
    "num_codes",
    "decoding",
    "override",
    "execution_delay_bars",
    "horizon_boundary",
    "max_position",
    "commission_rate",
    "depth_policy",
    "selector_lookback_bars",
    "refiner_lookback_bars",
)


@dataclass(frozen=True)
class _Bundle:
    policy: "TradingPolicy"
    scaler: "FeatureScaler"
    pair: str
    parents: dict[str, str]

    def save(self, directory: Path) -> None:
        from archetype_dagster.deployment import export_policy

        export_policy(self.policy, self.scaler, directory, pair=self.pair, parents=self.parents)


@stage_asset(output_required=False)
def onnx_policy(
    context: dg.AssetExecutionContext,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
    refinement_checkpoint: Artifact,
) -> Iterator[dg.MaterializeResult[Artifact]]:
    """The policy with its scaler and rules as ONNX graphs; skipped where the policy reads the future."""
    resources = cast(StageResources, context.resources)
    if vq_codebook.manifest.facts["hindsight"]:
        # A bundle left from causal settings would belong to another policy.
        retire_artifact(resources.store.directory("onnx_policy", context.partition_key))
        resources.progress.note(context.log, f"{context.partition_key} onnx_policy: {HINDSIGHT_REASON}")
        context.log_event(dg.AssetObservation("onnx_policy", metadata={"skipped": HINDSIGHT_REASON}))
        return

    parents = [feature_table, vq_codebook, selection_checkpoint, refinement_checkpoint]

    def compute(run: "StageRun") -> _Bundle:
        from archetype_dagster.pipeline.inputs import policy_of, table_of

        policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, run.settings)
        hashes = {parent.manifest.kind: parent.content_hash for parent in parents}
        return _Bundle(policy, table_of(feature_table).scaler, run.pair, hashes)

    yield run_stage(context, parents, compute=compute, describe=_describe)


def _describe(artifact: Artifact) -> Metadata:
    from archetype_dagster.deployment import read_bundle

    bundle = read_bundle(artifact.directory)
    files = [artifact.directory / name for name in sorted(artifact.manifest.files)]
    sizes = [{"file": path.name, "bytes": path.stat().st_size} for path in files]
    rules = {name: bundle.manifest[name] for name in _STATED}
    return {
        "files": table(sizes),
        "bytes": sum(path.stat().st_size for path in files),
        "bundle": bundle.hash,
        "policy": facts_table(rules),
        "parents": facts_table(bundle.manifest["parents"]),
    }
