"""All four acceptance metrics, measured one after the other and told as one JSON object."""

from __future__ import annotations

from dataclasses import dataclass

from archetype_dagster.acceptance.convergence import convergence
from archetype_dagster.acceptance.hpo import hpo_gain, hpo_wall_time, timed_sweep
from archetype_dagster.acceptance.metric import AcceptanceMetric
from archetype_dagster.acceptance.onnx_error import onnx_pnl_error
from archetype_dagster.acceptance.policies import AcceptanceRun
from archetype_dagster.artifacts import git_revision
from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class AcceptanceReport:
    """What was measured.

    Attributes:
        pair: traded pair.
        profile: profile of the baseline.
        settings_hash: of the baseline's settings.
        metrics: the four.
    """

    pair: str
    profile: str
    settings_hash: str
    metrics: tuple[AcceptanceMetric, ...]

    @property
    def passed(self) -> bool:
        """True where every metric reached its target."""
        return all(metric.verdict == "passed" for metric in self.metrics)

    def as_dict(self) -> JsonDict:
        """The report as JSON values."""
        return {
            "passed": self.passed,
            "commit": git_revision(),
            "pair": self.pair,
            "profile": self.profile,
            "settings_hash": self.settings_hash,
            "metrics": {metric.name: metric.as_dict() for metric in self.metrics},
        }


def measure_acceptance(run: AcceptanceRun) -> AcceptanceReport:
    """Measure all four; what was trained or timed before in the same folder is found.

    Raises:
        ArchetypeError: the computations' own errors.
    """
    converged = convergence(run)
    exported = onnx_pnl_error(run)
    sweep = timed_sweep(run)
    metrics = (converged, hpo_gain(run, sweep), exported, hpo_wall_time(run, sweep))
    return AcceptanceReport(run.settings.pair, run.settings.profile, run.baseline.content_hash, metrics)
