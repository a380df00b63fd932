"""Trials as TensorBoard event files, one directory each."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def make_tb_log_dir(trial_id: int | str, base: str | Path = "./tb_logs") -> Path:
    """The directory of one trial under `base`, made where it is missing.

    Whatever writes event files takes it, such as `PPO(..., tensorboard_log=str(directory))`.
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


def log_trial(base: Path, trial: FrozenTrial, value: float | None) -> None:
    """Write a trial's parameters, reports and value to its directory under `base`.

    Numbers become points at step 0 under `params/`, reports the curve `objective/reported`, the value
    `objective/value`.
    """
    from tensorboard.summary import Writer  # here, because it is slow to load and few write curves

    with closing(Writer(str(make_tb_log_dir(trial.number, base)))) as writer:
        for name, chosen in trial.params.items():
            if isinstance(chosen, int | float):
                writer.add_scalar(f"params/{name}", float(chosen), 0)
        for step, reported in sorted(trial.intermediate_values.items()):
            writer.add_scalar("objective/reported", reported, step)
        if value is not None:
            writer.add_scalar("objective/value", value, 0)
