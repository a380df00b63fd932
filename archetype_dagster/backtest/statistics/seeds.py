"""One number over repeated runs that differ by their seed alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from archetype_dagster.types import FloatArray, JsonDict


@dataclass(frozen=True)
class SeedSummary:
    """Spread of a metric over seeds; undefined runs are counted and left out of the numbers.

    Attributes:
        seeds: number of runs.
        undefined: runs whose metric is undefined.
        mean: of the defined runs; None where there is none, as all below.
        std: sample deviation (ddof = 1); None for fewer than two defined runs.
        minimum: lowest run.
        maximum: highest run.
        low: lower end of the t interval of the mean, mean - t std / sqrt(runs); None for fewer than two.
        high: its upper end.
        confidence: coverage of the interval.
        beats: share of all pairs of a run with a run of each baseline in which it is the better one, an undefined
            or ruined run being better than none; None where the baseline has no run.
    """

    seeds: int
    undefined: int
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None
    low: float | None
    high: float | None
    confidence: float
    beats: dict[str, float | None]

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return {**vars(self), "beats": dict(self.beats)}


def seed_summary(
    values: Mapping[int, float | None],
    baselines: Mapping[str, Sequence[float]] | None = None,
    *,
    ruined: Collection[int] = (),
    confidence: float = 0.95,
    higher_is_better: bool = True,
) -> SeedSummary:
    """Mean, spread, and how often a seed beats each baseline.

    Args:
        values: the metric by seed; None where it is undefined.
        baselines: the same metric of each run of what to beat, by name; infinite, at the worse end, where a run was
            ruined.
        ruined: seeds whose run lost everything; their metrics are of the bars before, and count in the spread alone.
        confidence: coverage of the t interval, in (0, 1). It speaks of the seed alone, on these very bars.
        higher_is_better: False for volatility and drawdown.

    Raises:
        ValueError: no seed, a value that is not finite, or a confidence outside (0, 1).
    """
    if not values:
        raise ValueError("seed_summary needs at least one seed, got 0")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got confidence={confidence}")
    runs = np.array([value for value in values.values() if value is not None], dtype=np.float64)
    if not np.isfinite(runs).all():
        raise ValueError(f"values must be finite or None, got {runs[~np.isfinite(runs)][0]}")
    ahead = 1.0 if higher_is_better else -1.0
    standing = [value for seed, value in values.items() if value is not None and seed not in ruined]
    mean, minimum, maximum = (float(f(runs)) if len(runs) else None for f in (np.mean, np.min, np.max))
    std = low = high = None
    if len(runs) > 1 and mean is not None:
        std = float(runs.std(ddof=1))
        reach = float(student.ppf((1 + confidence) / 2, len(runs) - 1)) * std / len(runs) ** 0.5
        low, high = mean - reach, mean + reach
    return SeedSummary(
        seeds=len(values),
        undefined=len(values) - len(runs),
        mean=mean,
        std=std,
        minimum=minimum,
        maximum=maximum,
        low=low,
        high=high,
        confidence=confidence,
        beats={
            name: _share_ahead(ahead * np.array(standing), ahead * np.array(runs_of_it), len(values))
            for name, runs_of_it in (baselines or {}).items()
        },
    )


def _share_ahead(standing: FloatArray, rival: FloatArray, runs: int) -> float | None:
    """Share of the pairs of `runs` runs with those of a rival that `standing` ones win; None without a rival."""
    if not len(rival):
        return None
    return float(np.count_nonzero(standing[:, None] > rival) / (runs * len(rival)))
