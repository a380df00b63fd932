"""Standardisation whose numbers come from the training split only and travel with the policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from archetype_dagster.artifacts import read_json, write_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import FloatArray, StateArray

_RESIDUE: Final = 1e-12


@dataclass(frozen=True)
class FeatureScaler:
    """x -> clip((x - mean) / std, -clip_sigma, clip_sigma), float32.

    Attributes:
        mean: float64 (F,), training means.
        std: float64 (F,), training population deviations; 1 where a feature was constant.
        clip_sigma: bound of the scaled features, in training deviations.

    Raises:
        ValueError: vectors of different length, non-finite numbers or a bound or deviation <= 0.
    """

    mean: FloatArray
    std: FloatArray
    clip_sigma: float

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise ValueError(f"mean and std must be vectors of one length, got {self.mean.shape} and {self.std.shape}")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std > 0).all()):
            raise ValueError("scaler means must be finite and its deviations finite and positive")
        if not (np.isfinite(self.clip_sigma) and self.clip_sigma > 0):
            raise ValueError(f"clip_sigma must be positive, got clip_sigma={self.clip_sigma}")

    @classmethod
    def fit(cls, features: FloatArray, *, clip_sigma: float = 10.0) -> Self:
        """Measure mean and deviation of `features` (T, F), which must be training rows only.

        A feature whose deviation is float residue (1e-12 of its mean's size) counts as constant and gets
        std 1: it is centred and left alone.

        Raises:
            ValueError: not two-dimensional, no rows, or a value that is not finite.
        """
        if features.ndim != 2 or not len(features):
            raise ValueError(f"features must be (T, F) with T >= 1, got shape {features.shape}")
        if not np.isfinite(features).all():
            row, column = np.argwhere(~np.isfinite(features))[0]
            raise ValueError(f"features must be finite, got {features[row, column]} at row {row}, column {column}")
        mean = features.mean(axis=0, dtype=np.float64)
        std = features.std(axis=0, dtype=np.float64)
        return cls(mean, np.where(std <= _RESIDUE * np.abs(mean), 1.0, std), float(clip_sigma))

    def transform(self, features: FloatArray) -> StateArray:
        """Scaled and clipped features, float32, same shape (..., F)."""
        if features.shape[-1:] != self.mean.shape:
            raise ValueError(f"features must have {len(self.mean)} columns, got shape {features.shape}")
        scaled = (features - self.mean) / self.std
        return np.minimum(np.maximum(scaled, -self.clip_sigma), self.clip_sigma).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the numbers as JSON; they are read back bit for bit."""
        write_json(path, {"mean": self.mean.tolist(), "std": self.std.tolist(), "clip_sigma": self.clip_sigma})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a scaler written by `save`.

        Raises:
            ArtifactError: missing, truncated or foreign file.
        """
        raw = read_json(path)
        try:
            mean, std = (np.asarray(raw[name], dtype=np.float64) for name in ("mean", "std"))
            return cls(mean, std, float(raw["clip_sigma"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} is not a feature scaler ({error})") from error
