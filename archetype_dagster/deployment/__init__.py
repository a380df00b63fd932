"""Trained policies as ONNX bundles that run without torch, and the checks that they decide the same.

Names are loaded at their first use, so that running a bundle loads neither torch nor what training needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from archetype_dagster.deployment.bundle import Bundle, read_bundle
    from archetype_dagster.deployment.bundle_graphs import BundleGraphs
    from archetype_dagster.deployment.bundle_replay import replay_bundle
    from archetype_dagster.deployment.export import export_policy
    from archetype_dagster.deployment.onnx_policy import Decision, OnnxPolicy
    from archetype_dagster.deployment.parity import GraphParity, ParityReport, check_parity
    from archetype_dagster.deployment.strategy import OnnxPolicyStrategy
    from archetype_dagster.deployment.streaming_parity import StreamingParity, check_streaming

__all__ = [
    "Bundle",
    "BundleGraphs",
    "Decision",
    "GraphParity",
    "OnnxPolicy",
    "OnnxPolicyStrategy",
    "ParityReport",
    "StreamingParity",
    "check_parity",
    "check_streaming",
    "export_policy",
    "read_bundle",
    "replay_bundle",
]

_HOMES: Final = {
    "Bundle": "bundle",
    "BundleGraphs": "bundle_graphs",
    "Decision": "onnx_policy",
    "GraphParity": "parity",
    "OnnxPolicy": "onnx_policy",
    "OnnxPolicyStrategy": "strategy",
    "ParityReport": "parity",
    "StreamingParity": "streaming_parity",
    "check_parity": "parity",
    "check_streaming": "streaming_parity",
    "export_policy": "export",
    "read_bundle": "bundle",
    "replay_bundle": "bundle_replay",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
