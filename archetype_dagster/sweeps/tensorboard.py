"""Curves as TensorBoard event files: one directory a trial, and a progress that writes what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archetype_dagster.types import NoProgress, Progress

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def make_tb_log_dir(trial_id: int | str, base: str | Path = "./tb_logs") -> Path:
    """The directory of one trial under `base`, made where it is missing.

    Whatever writes event files takes it: `PPO(..., tensorboard_log=str(directory))`, or `Curves(directory)`.
    `tensorboard --logdir BASE` then shows the trials side by side.

    Args:
        trial_id: number of the trial, or a name of one path component.
        base: folder of all trials of a study.

    Raises:
        ValueError: a negative number, or a name that is empty or leads elsewhere.
    """
    if isinstance(trial_id, int):
        if trial_id < 0:
            raise ValueError(f"trial_id must not be negative, got trial_id={trial_id}")
        name = f"trial_{trial_id:05d}"
    else:
        name = trial_id
        if not name or name.startswith(".") or Path(name).name != name:
            raise ValueError(f"trial_id must name one directory, got trial_id={trial_id!r}")
    directory = Path(base) / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


class Curves:
    """Writes named curves to an event file in `directory`; as a context it closes the file.

    Args:
        directory: made where it is missing; the file is made with the first point.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboard.summary import Writer  # here, because it is slow to load and few write curves

        self._writer = Writer(str(directory))

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class CurvesProgress:
    """A `Progress` that also writes the metrics it is told to an event file.

    Args:
        directory: of the event file.
        inner: told everything too.
    """

    def __init__(self, directory: Path, inner: Progress | None = None) -> None:
        self._directory, self._inner = directory, inner or NoProgress()
        self._curves: Curves | None = None

    def start(self, description: str, total: int) -> None:
        """Open a task."""
        self._inner.start(description, total)

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Report, and add a point to each curve."""
        self._inner.advance(completed, metrics)
        if metrics:
            self._curves = self._curves or Curves(self._directory)
            self._curves.add(completed, metrics)

    def finish(self) -> None:
        """Close the task and the file."""
        self._inner.finish()
        if self._curves is not None:
            self._curves.__exit__()
            self._curves = None


def log_trial(base: Path, trial: FrozenTrial, value: float | None) -> None:
    """Write a trial's parameters, reports and value to its directory under `base`.

    Numbers become points at step 0 under `params/`, reports the curve `objective/reported`, the value
    `objective/value`.
    """
    with Curves(make_tb_log_dir(trial.number, base)) as curves:
        numbers = {name: value for name, value in trial.params.items() if isinstance(value, int | float)}
        curves.add(0, {f"params/{name}": float(value) for name, value in numbers.items()})
        for step, reported in sorted(trial.intermediate_values.items()):
            curves.add(step, {"objective/reported": reported})
        if value is not None:
            curves.add(0, {"objective/value": value})
