"""Everything that was tried, side by side: what corrections for luck and for many trials are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from archetype_dagster.types import FloatArray, JsonDict


class Tried(Protocol):
    """What was tried: a study of the pair, or a sweep."""

    @property
    def runs(self) -> Mapping[str, JsonDict]:
        """Facts of each run by name: `key`, `account` and, under `validation`, its metrics there."""

    @property
    def validation(self) -> pl.DataFrame:
        """`timestamp` and the per-bar return of each run by name, but for runs that were given up early."""


@dataclass(frozen=True)
class Trials:
    """N trials on the same T validation bars; a trial is one run of a study or sweep, seeds counted one by one.

    Attributes:
        names: of the trials, with their studies.
        returns: float64 (T, M), per-bar returns of those that were judged to the end, M <= N; 0 after a ruin.
        sharpes: annual Sharpe ratio of each trial, None where it is undefined or the trial was given up early.
    """

    names: tuple[str, ...]
    returns: FloatArray
    sharpes: tuple[float | None, ...]


def collect_trials(studies: Mapping[str, Tried]) -> Trials:
    """The runs' own accounts on the validation split, where choices are made; the same run counts once.

    Args:
        studies: everything that was tried, by name.

    Raises:
        ValueError: nothing was tried, or the studies were not judged on the same validation bars.
    """
    distinct: dict[str, tuple[str, pl.Series | None, float | None]] = {}
    first: tuple[str, pl.Series] | None = None
    for name, study in studies.items():
        clock = study.validation["timestamp"]
        first = (name, clock) if first is None else first
        if not clock.equals(first[1]):
            raise ValueError(f"trials must share their validation bars, {first[0]} and {name} do not")
        for run, facts in study.runs.items():
            returns = study.validation[run] if run in study.validation.columns else None
            trial = (f"{name}: {run}", returns, facts["validation"]["sharpe"])
            distinct.setdefault(f"{facts['key']}/{facts['account']}", trial)
    if first is None or not distinct:
        raise ValueError("collect_trials needs at least one run, got none")
    names, columns, sharpes = zip(*distinct.values(), strict=True)
    judged = [column.to_numpy() for column in columns if column is not None]
    return Trials(names, np.stack(judged, axis=1) if judged else np.empty((len(first[1]), 0)), sharpes)
