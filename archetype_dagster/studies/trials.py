"""Everything that was tried, side by side: what corrections for luck and for many trials are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.backtest.performance import Performance
from archetype_dagster.studies.results import StudyResult
from archetype_dagster.studies.runs import Name
from archetype_dagster.types import FloatArray


@dataclass(frozen=True)
class Trials:
    """N trials on the same T validation bars; a trial is one run of a study, seeds counted one by one.

    Attributes:
        names: of the trials.
        timestamps: datetime64[us] (T,), bar ends, UTC.
        returns: float64 (T, N), per-bar returns; 0 after a ruin.
        sharpes: annual Sharpe ratio of each trial, None where undefined.
    """

    names: tuple[str, ...]
    timestamps: NDArray[np.datetime64]
    returns: FloatArray
    sharpes: tuple[float | None, ...]


def collect_trials(results: Mapping[Name, StudyResult]) -> Trials:
    """The runs' own accounts on the validation split, where choices are made; the same run counts once.

    Args:
        results: everything that was tried, by name.

    Raises:
        ValueError: nothing was tried, or the runs were not judged on the same validation bars.
    """
    if not results:
        raise ValueError("collect_trials needs at least one result, got none")
    distinct: dict[str, tuple[Name, StudyResult]] = {}
    for name, result in results.items():
        distinct.setdefault(result.key, (name, result))
    chosen = list(distinct.values())
    clock = chosen[0][1].validation.timestamps
    for name, result in chosen:
        if not np.array_equal(result.validation.timestamps, clock):
            raise ValueError(f"trials must share their validation bars, {chosen[0][0]!r} and {name!r} do not")
    return Trials(
        names=tuple(str(name) for name, _ in chosen),
        timestamps=clock,
        returns=np.stack([result.validation.accounts[result.run.account].returns for _, result in chosen], axis=1),
        sharpes=tuple(result.validation_performance().sharpe for _, result in chosen),
    )


def performances_by_seed(results: Mapping[tuple[str, int], StudyResult]) -> dict[str, dict[int, Performance]]:
    """Test metrics by the name of the run and then by seed, from the results of `across_seeds`."""
    table: dict[str, dict[int, Performance]] = {}
    for (name, seed), result in results.items():
        table.setdefault(name, {})[seed] = result.performance()
    return table
