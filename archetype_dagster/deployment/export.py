"""A trained policy as a bundle of plain files that runs without torch: ONNX graphs, scaler and rules.

A bundle holds selector.onnx, decoder_step.onnx, refiner_step.onnx (where there is a refiner),
scaler.json, policy.json (names, shapes, rules) and checksums.json (SHA-256 of all the others).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from archetype_dagster.artifacts import file_hash, write_json
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.deployment.graphs import OPSET, decoder_graph, refiner_graph, selector_graph, write_graph
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.selection import ContinuousSelector, Selector
from archetype_dagster.types import ACTION_NAMES, JsonDict

BUNDLE_VERSION: Final = 1
PARITY_TOLERANCE: Final = 1e-5
POLICY_FILE: Final = "policy.json"
SCALER_FILE: Final = "scaler.json"
CHECKSUMS_FILE: Final = "checksums.json"

_RULES: Final = {
    "state": "features in feature_names order, scaled by scaler.json: clip((x - mean) / std), float32",
    "code": "argmax of code_logits at the horizon's first bar, held for the horizon; ties go to the lowest code",
    "base_action": "argmax of action_logits, ties go to the lowest action; under decoding single_change the "
    "first action that is not flat is held to the horizon's end",
    "decoder_state": "hidden_in and cell_in are zero at a horizon's first bar, then hidden_out and cell_out",
    "override": "at most one in a horizon: the first bar where the base action equals the one before and a logit of "
    "override_logits [short, nothing, long] for another action exceeds that of nothing; ties between directions go "
    "to short",
    "override_end": "step: the base action returns at the next bar; hold: at the base's next change of action",
    "realised_return": "100 / (m p_0) times the base actions' rewards realised before this bar, p_0 the mark at "
    "the horizon's first execution",
    "time_left": "(h - tau) / h with tau = 0 at the horizon's first bar",
    "horizon": "starts at the first bar with features after a gap and after every h bars; the position is carried",
}


def export_policy(policy: TradingPolicy, scaler: FeatureScaler, directory: Path, *, pair: str) -> JsonDict:
    """Write the bundle into an existing folder and return its manifest (policy.json).

    Weights are those of the trained networks; nothing samples, so one observation gives one action.

    Args:
        policy: frozen phases and their settings.
        scaler: the scaler fitted on the training split.
        directory: existing folder.
        pair: traded pair.

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
    codes = policy.codebook.quantizer.codes
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
        "quote": spec.quote,
        "max_position": spec.max_position,
        "commission_rate": settings.execution.commission_rate,
        "depth_policy": settings.execution.depth_policy,
        "execution_delay_bars": settings.execution.execution_delay_bars,
        "horizon_boundary": settings.execution.horizon_boundary,
        "bar_minutes": settings.market.bar_minutes,
        "horizon_bars": settings.planner.horizon_bars,
        "feature_names": list(FEATURE_NAMES),
        "feature_scale": settings.features.scale,
        "warmup_bars": WARMUP_BARS,
        "num_codes": int(codes.shape[0]),
        "actions": list(ACTION_NAMES),
        "decoding": policy.codebook.settings.decoding,
        "override": settings.refinement.override if policy.refiner is not None else None,
        "rules": _RULES,
        "graphs": {name: write_graph(directory, graph) for name, graph in graphs.items()},
        "opset": OPSET,
        "parity_tolerance": PARITY_TOLERANCE,
        "seed": settings.seed,
    }
    scaler.save(directory / SCALER_FILE)
    write_json(directory / POLICY_FILE, manifest)
    files = [POLICY_FILE, SCALER_FILE, *(graph.file for graph in graphs.values())]
    write_json(directory / CHECKSUMS_FILE, {name: file_hash(directory / name) for name in sorted(files)})
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
