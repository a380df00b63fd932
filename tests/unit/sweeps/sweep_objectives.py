"""Objectives that worker processes import; light, because each of them does."""

import os
import signal
import sys
import time
from pathlib import Path

from optuna import Trial, TrialPruned

from archetype_dagster.sweeps import RLHPOSweeper, SearchSpaceDef

SPACE = {"x": SearchSpaceDef("uniform", -3, 3), "kind": SearchSpaceDef("categorical", choices=["a", "b"])}


def parabola(params):
    return -((params["x"] - 1) ** 2) - (params["kind"] == "b")


def killed_at_trial_40(params, trial: Trial):
    if trial.number == 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return parabola(params)


def always_killed(params, trial: Trial):
    os.kill(os.getpid(), signal.SIGKILL)


class TwoPartError(Exception):
    """Cannot be made again from its arguments, as what crosses to another process must be."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def failing(params, trial: Trial):
    raise RuntimeError(f"broken engine {trial.number}")


def failing_for_b(params):
    if params["kind"] == "b":
        raise RuntimeError("no b")
    return parabola(params)


def slow(params):
    time.sleep(0.3)
    return parabola(params)


def learning(params, trial: Trial):
    """Comes nearer to its value with each report."""
    for step in range(10):
        trial.report(parabola(params) * (1 + 1 / (1 + step)), step)
        if trial.should_prune():
            raise TrialPruned
    return parabola(params)


def slow_sweeper(journal: Path, n_jobs: int) -> RLHPOSweeper:
    return RLHPOSweeper("slow", 40, SPACE, journal, n_jobs=n_jobs, sampler="random")


if __name__ == "__main__":
    # Workers know the function by the name of this module, not as one of a script.
    import sweep_objectives

    # A shell that starts the tests in the background lets its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slow_sweeper(Path(sys.argv[1]), n_jobs=2).sweep(sweep_objectives.slow)
