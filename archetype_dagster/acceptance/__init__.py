"""The four acceptance metrics: what each must reach, what it reached, and how certain that is."""

from archetype_dagster.acceptance.metric import AcceptanceMetric, Target
from archetype_dagster.acceptance.report import AcceptanceReport, measure_acceptance

__all__ = ["AcceptanceMetric", "AcceptanceReport", "Target", "measure_acceptance"]
