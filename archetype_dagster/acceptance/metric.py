"""One acceptance metric: a target, a measurement, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from archetype_dagster.backtest.statistics import seed_summary
from archetype_dagster.types import JsonDict

Verdict = Literal["passed", "short of target", "failed"]


@dataclass(frozen=True)
class Target:
    """What a metric must reach.

    Attributes:
        value: the value that must be exceeded, or stayed below.
        exceeded: True where more is better.
        poor: the value at which falling short becomes failing; None where every miss fails.
        unit: of the value, for a reader.
    """

    value: float
    exceeded: bool
    poor: float | None = None
    unit: str = ""

    def verdict(self, measured: float | None) -> Verdict:
        """The verdict on a value; what could not be measured failed."""
        if measured is None:
            return "failed"
        if self._better(measured, self.value):
            return "passed"
        return "failed" if self.poor is None or not self._better(measured, self.poor) else "short of target"

    def _better(self, measured: float, level: float) -> bool:
        return measured > level if self.exceeded else measured < level

    def __str__(self) -> str:
        return f"{'>' if self.exceeded else '<'} {self.value:g}{f' {self.unit}' if self.unit else ''}"


@dataclass(frozen=True)
class AcceptanceMetric:
    """A metric as it was measured.

    Attributes:
        name: of the metric.
        target: what it must reach.
        measured: its value; None where there is none.
        interval: around the value; None where one run was measured, or too few are defined.
        interval_of: what the interval speaks of.
        seeds: of the runs behind it.
        facts: what else a reader needs.
    """

    name: str
    target: Target
    measured: float | None
    interval: tuple[float, float] | None
    interval_of: str
    seeds: tuple[int, ...]
    facts: JsonDict = field(default_factory=dict)

    @classmethod
    def over_seeds(
        cls, name: str, target: Target, values: Mapping[int, float | None], *, confidence: float, facts: JsonDict
    ) -> AcceptanceMetric:
        """The mean over seeds with its t interval; not measured where it is undefined for a seed.

        Args:
            name: of the metric.
            target: what it must reach.
            values: by seed; None where undefined.
            confidence: coverage of the interval.
            facts: what else a reader needs.
        """
        summary = seed_summary(values, confidence=confidence)
        interval = None if summary.low is None or summary.high is None else (summary.low, summary.high)
        return cls(
            name=name,
            target=target,
            measured=None if summary.undefined else summary.mean,
            interval=interval,
            interval_of=f"{confidence:.0%} t interval of the mean over seeds, on these very bars",
            seeds=tuple(values),
            facts={"by_seed": {str(seed): value for seed, value in values.items()}, **facts},
        )

    @property
    def verdict(self) -> Verdict:
        """See `Target.verdict`."""
        return self.target.verdict(self.measured)

    def as_dict(self) -> JsonDict:
        """The metric as JSON values."""
        return {
            "target": str(self.target),
            "measured": self.measured,
            "interval": None if self.interval is None else list(self.interval),
            "interval_of": self.interval_of,
            "seeds": list(self.seeds),
            "verdict": self.verdict,
            **self.facts,
        }
