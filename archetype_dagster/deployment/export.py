"""A trained policy as a bundle of plain files that runs without torch: ONNX graphs, scaler and rules.

A bundle holds selector.onnx, decoder_step.onnx, refiner_step.onnx (where there is a refiner),
scaler.json, policy.json (names, shapes, rules, numbers) and checksums.json (SHA-256 of all the others).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.deployment.bundle import POLICY_FILE, SCALER_FILE, seal_bundle
from archetype_dagster.deployment.graphs import OPSET, decoder_graph, refiner_graph, selector_graph, write_graph
from archetype_dagster.deployment.interfaces import require_interfaces
from archetype_dagster.deployment.rules import BUNDLE_VERSION, RULES, feature_hash
from archetype_dagster.deployment.sessions import CPU, CUDA
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.selection import ContinuousSelector, Selector
from archetype_dagster.types import ACTION_NAMES, JsonDict

PARITY_TOLERANCE: Final = 1e-5
# Features of a stream against the table's, and net values of bar-by-bar against batch decisions, both relative.
EQUALITY_TOLERANCE: Final = 1e-9


def export_policy(
    policy: TradingPolicy,
    scaler: FeatureScaler,
    directory: Path,
    *,
    pair: str,
    parents: Mapping[str, str] | None = None,
) -> JsonDict:
    """Write the bundle into an existing folder and return its manifest (policy.json).

    Weights are those of the trained networks; nothing samples, so one observation gives one action.

    Args:
        policy: frozen phases and their settings.
        scaler: the scaler fitted on the training split.
        directory: existing folder.
        pair: traded pair.
        parents: content hash of each artifact that the policy was made from, by kind.

    Raises:
        ArtifactError: the policy reads the future, chooses embeddings instead of codes, or its parts do not fit.
        SettingsError: unknown pair.
    """
    if policy.hindsight:
        raise ArtifactError(
            "a hindsight policy is not exported: its decoder reads the whole horizon before the first action"
        )
    selector = policy.selector
    if isinstance(selector, ContinuousSelector):
        raise ArtifactError("a continuous policy is not exported: its selector chooses embeddings, a bundle runs codes")
    _require_fit(policy, selector, scaler)
    settings = policy.settings
    spec = settings.pair(pair)
    codes, curve = policy.codebook.quantizer.codes, ImpactCurve.default().scaled(spec.liquidity_scale)
    graphs = {
        "selector": selector_graph(selector.network),
        "decoder": decoder_graph(policy.codebook.decoder, codes),
    }
    if policy.refiner is not None:
        graphs["refiner"] = refiner_graph(policy.refiner.network, codes)
    manifest: JsonDict = {
        "schema_version": BUNDLE_VERSION,
        "hindsight": False,
        "pair": pair,
        "base": spec.base,
        "quote": spec.quote,
        "max_position": spec.max_position,
        "commission_rate": settings.execution.commission_rate,
        "depth_policy": settings.execution.depth_policy,
        "impact_curve": {"notional": curve.notional.tolist(), "distance_bps": curve.distance_bps.tolist()},
        "execution_delay_bars": settings.execution.execution_delay_bars,
        "horizon_boundary": settings.execution.horizon_boundary,
        "bar_minutes": settings.market.bar_minutes,
        "horizon_bars": settings.planner.horizon_bars,
        "feature_names": list(FEATURE_NAMES),
        "feature_hash": feature_hash(),
        "feature_scale": settings.features.scale,
        "warmup_bars": WARMUP_BARS,
        "num_codes": int(codes.shape[0]),
        "actions": list(ACTION_NAMES),
        "decoding": policy.codebook.settings.decoding,
        "override": settings.refinement.override if policy.refiner is not None else None,
        "selector_lookback_bars": selector.network.lookback_bars,
        "refiner_lookback_bars": 1 if policy.refiner is None else policy.refiner.network.lookback_bars,
        "rules": RULES,
        "graphs": {name: write_graph(directory, graph) for name, graph in graphs.items()},
        "opset": OPSET,
        "providers": [CPU, CUDA],
        "tolerances": {
            "logits_absolute": PARITY_TOLERANCE,
            "features_relative": EQUALITY_TOLERANCE,
            "net_value_relative": EQUALITY_TOLERANCE,
        },
        "parents": dict(parents or {}),
        "seed": settings.seed,
    }
    require_interfaces(manifest, file=directory / POLICY_FILE)
    scaler.save(directory / SCALER_FILE)
    write_json(directory / POLICY_FILE, manifest)
    seal_bundle(directory, [POLICY_FILE, SCALER_FILE, *(graph.file for graph in graphs.values())])
    return manifest


def _require_fit(policy: TradingPolicy, selector: Selector, scaler: FeatureScaler) -> None:
    codes, features = policy.codebook.quantizer.codes.shape[0], len(FEATURE_NAMES)
    facts = {
        "the scaler's features": (len(scaler.mean), features),
        "the selector's features": (selector.network.shape["num_features"], features),
        "the decoder's features": (policy.codebook.decoder.num_features, features),
        "the selector's codes": (selector.num_codes, codes),
        "the codebook's horizon": (policy.codebook.horizon_bars, policy.settings.planner.horizon_bars),
    }
    if policy.refiner is not None:
        facts["the refiner's features"] = (policy.refiner.network.shape["num_features"], features)
    for name, (found, expected) in facts.items():
        if found != expected:
            raise ArtifactError(f"{name} must be {expected}, got {found}; the parts belong to different runs")
