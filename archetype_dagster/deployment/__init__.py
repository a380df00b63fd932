"""Trained policies as ONNX bundles that run without torch, and the check that they decide the same."""

from archetype_dagster.deployment.export import export_policy
from archetype_dagster.deployment.onnx_policy import OnnxPolicy
from archetype_dagster.deployment.parity import GraphParity, ParityReport, check_parity

__all__ = ["GraphParity", "OnnxPolicy", "ParityReport", "check_parity", "export_policy"]
