"""What a sweep found, and the table of all its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

from archetype_dagster.sweeps.book import ERROR, TRIAL

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class SweepResult:
    """The best trial of a study and the account of all of them.

    Attributes:
        study_name: name of the study.
        best_params: parameters of the best complete trial by name.
        best_value: its value.
        best_trial: its number.
        n_trials: complete trials of the study.
        n_pruned: trials that were given up early.
        n_failed: trials that raised or whose process died; the latter were run again under another number.
        trials: a row a trial, see `trials_table`.
        processes: ids of the processes that ran trials in this call, sorted.
    """

    study_name: str
    best_params: dict[str, Any]
    best_value: float
    best_trial: int
    n_trials: int
    n_pruned: int
    n_failed: int
    trials: pl.DataFrame
    processes: tuple[int, ...]

    @property
    def n_tried(self) -> int:
        """Settings that were looked at, complete or pruned: the N of the deflated Sharpe ratio."""
        return self.n_trials + self.n_pruned


def trials_table(trials: Sequence[FrozenTrial], names: Sequence[str]) -> pl.DataFrame:
    """All trials of a study in order of their numbers.

    Returns:
        `number` Int64, `state` (complete, pruned, failed, running, waiting), `value` Float64 (of a pruned trial its
        last report), a column for each of `names`, `reports` Int64 (intermediate values), `draw` Int64, `retry_of`
        Int64 (the trial it repeats), `process` Int64, `started` Datetime UTC, `seconds` Float64, `error` String.
    """
    import polars as pl  # here, so that a worker process need not load it

    facts = [trial.user_attrs.get(TRIAL, {}) for trial in trials]
    return pl.DataFrame(
        {
            "number": pl.Series([trial.number for trial in trials], dtype=pl.Int64),
            "state": pl.Series([_state(trial) for trial in trials], dtype=pl.String),
            "value": pl.Series([trial.value for trial in trials], dtype=pl.Float64),
            **{name: pl.Series([trial.params.get(name) for trial in trials], strict=False) for name in names},
            "reports": pl.Series([len(trial.intermediate_values) for trial in trials], dtype=pl.Int64),
            **{
                name: pl.Series([fact.get(name) for fact in facts], dtype=pl.Int64)
                for name in ("draw", "retry_of", "process")
            },
            "started": pl.Series(
                [None if trial.datetime_start is None else trial.datetime_start.astimezone(UTC) for trial in trials],
                dtype=pl.Datetime("us", "UTC"),
            ),
            "seconds": pl.Series(
                [None if trial.duration is None else trial.duration.total_seconds() for trial in trials],
                dtype=pl.Float64,
            ),
            "error": pl.Series([trial.user_attrs.get(ERROR) for trial in trials], dtype=pl.String),
        }
    )


def _state(trial: FrozenTrial) -> str:
    return "failed" if trial.state is TrialState.FAIL else trial.state.name.lower()
