"""How far newer numbers are from those that were learned from: per feature, and in the use of the archetypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.types import FloatArray, IndexArray

DRIFT_SCHEMA: Final = pl.Schema({"feature": pl.String(), "psi": pl.Float64(), "ks": pl.Float64()})
_BINS: Final = 10


def feature_drift(training: FloatArray, recent: FloatArray, names: Sequence[str]) -> pl.DataFrame:
    """The distance of each feature's newer distribution from that of the training rows.

    Args:
        training: float64 (N, F), finite.
        recent: float64 (M, F), finite.
        names: F names.

    Returns:
        A frame with the columns of `DRIFT_SCHEMA`, the most drifted feature first: the population stability
        index over the training deciles (a decile that several share counts once), and the Kolmogorov-Smirnov
        distance, the largest difference of the two distribution functions.

    Raises:
        ValueError: other shapes, no rows, or a value that is not finite.
    """
    for name, values in (("training", training), ("recent", recent)):
        if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
            raise ValueError(f"{name} must be (rows >= 1, {len(names)}), got shape {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite")
    pairs = list(zip(training.T, recent.T, strict=True))
    return pl.DataFrame(
        {
            "feature": list(names),
            "psi": [stability_index(*_in_deciles(old, new)) for old, new in pairs],
            "ks": [_largest_difference(old, new) for old, new in pairs],
        },
        schema=DRIFT_SCHEMA,
    ).sort("psi", descending=True, maintain_order=True)


def stability_index(training: IndexArray, recent: IndexArray) -> float:
    """Population stability index of two counts over the same bins, int64 (B,): sum of (q - p) ln(q / p).

    Half an observation is added to every bin, so that an empty one has no infinite weight.
    """
    if training.shape != recent.shape or training.ndim != 1:
        raise ValueError(f"counts must be vectors of one length, got {training.shape} and {recent.shape}")
    old, new = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (training, recent))
    return float(((new - old) * np.log(new / old)).sum())


def same_use_odds(training: IndexArray, recent: IndexArray) -> float:
    """p-value that two counts over K archetypes, int64 (K,), are draws from one distribution.

    The chi-squared test of homogeneity, over the archetypes that either uses; 1 where there is only one.
    """
    # Here, because loading it takes a second that most users of this module need not wait.
    from scipy.stats import chi2_contingency

    used = (training + recent) > 0
    if used.sum() < 2 or not training.sum() or not recent.sum():
        return 1.0
    return float(chi2_contingency(np.stack([training[used], recent[used]])).pvalue)


def _in_deciles(training: FloatArray, recent: FloatArray) -> tuple[IndexArray, IndexArray]:
    borders = np.unique(np.quantile(training, np.linspace(0, 1, _BINS + 1)[1:-1]))
    counts = [
        np.bincount(np.searchsorted(borders, values, side="right"), minlength=len(borders) + 1)
        for values in (training, recent)
    ]
    return counts[0].astype(np.int64), counts[1].astype(np.int64)


def _largest_difference(training: FloatArray, recent: FloatArray) -> float:
    old, new = np.sort(training), np.sort(recent)
    every = np.concatenate([old, new])
    below = [np.searchsorted(values, every, side="right") / len(values) for values in (old, new)]
    return float(np.abs(below[0] - below[1]).max())
