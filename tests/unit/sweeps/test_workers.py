import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
import sweep_objectives
from optuna.trial import TrialState
from sweep_objectives import SPACE, parabola

from archetype_dagster.errors import SweepError
from archetype_dagster.sweeps import RLHPOSweeper, SweepResult
from archetype_dagster.sweeps.storage import StudyStorage
from archetype_dagster.sweeps.trials import Outcome
from archetype_dagster.sweeps.workers import sendable_error


def whole(result: SweepResult, n_trials: int) -> bool:
    """All complete, none still running or waiting, no draw twice."""
    draws = result.trials.filter(state="complete")["draw"].sort().to_list()
    states = Counter(result.trials["state"])
    return draws == list(range(n_trials)) and states["running"] + states["waiting"] == 0


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def waited_for(condition, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_killed_worker_of_eight_costs_160_trials_nothing(tmp_path: Path) -> None:
    sweeper = RLHPOSweeper("s", 160, SPACE, tmp_path / "study.journal", n_jobs=8, sampler="random")
    result = sweeper.sweep(sweep_objectives.killed_at_trial_40)
    assert result.n_trials == 160
    assert whole(result, 160)
    [lost] = result.trials.filter(state="failed").iter_rows(named=True)
    assert lost["number"] == 40
    assert lost["error"] == f"worker process {lost['process']} was killed by SIGKILL"
    [retry] = result.trials.filter(retry_of=40).iter_rows(named=True)
    assert (retry["draw"], retry["x"], retry["kind"]) == (40, lost["x"], lost["kind"])
    # Eight and the dead one's successor, which may find nothing left to do.
    assert len(result.processes) in (8, 9)
    assert os.getpid() not in result.processes
    assert set(result.trials["process"]) == set(result.processes)
    assert not any(alive(process) for process in result.processes)
    serial = RLHPOSweeper("s", 160, SPACE, sampler="random").sweep(parabola)
    drawn = result.trials.filter(state="complete").sort("draw").select("x", "kind", "value")
    assert drawn.equals(serial.trials.select("x", "kind", "value"))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_ended_leaves_a_study_to_resume(ending: signal.Signals, tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    sweep = subprocess.Popen(
        [sys.executable, sweep_objectives.__file__, str(journal)], env=environment, stderr=subprocess.PIPE, text=True
    )

    def trials() -> list:
        storage = StudyStorage.of(journal, n_jobs=1).open()
        begun = "slow" in optuna.get_all_study_names(storage)
        return optuna.load_study(study_name="slow", storage=storage).trials if begun else []

    def complete() -> int:
        return sum(trial.state is TrialState.COMPLETE for trial in trials())

    assert waited_for(lambda: complete() >= 4 or sweep.poll() is not None)
    sweep.send_signal(ending)
    errors = sweep.communicate(timeout=60)[1]
    assert sweep.returncode == -ending, errors
    workers = {trial.user_attrs["archetype_trial"]["process"] for trial in trials() if trial.user_attrs}
    assert len(workers) == 2
    assert waited_for(lambda: not any(alive(worker) for worker in workers))
    if ending is signal.SIGINT:
        assert not any(trial.state is TrialState.RUNNING for trial in trials())
    before = complete()
    assert 4 <= before < 40
    result = sweep_objectives.slow_sweeper(journal, n_jobs=1).sweep(parabola)
    assert result.n_trials == 40
    assert whole(result, 40)
    assert result.trials.filter(process=os.getpid(), state="complete").height == 40 - before


def test_when_all_fail_in_workers_the_first_error_is_raised_with_where_it_was() -> None:
    with pytest.raises(RuntimeError, match="broken engine") as raised:
        RLHPOSweeper("s", 2, SPACE, n_jobs=2).sweep(sweep_objectives.failing)
    notes = "\n".join(raised.value.__notes__)
    assert "in failing" in notes
    assert "no trial of study 's' is complete: 0 trials were pruned, 2 failed" in notes


def test_an_error_that_cannot_travel_is_told_as_text() -> None:
    odd, plain = sweep_objectives.TwoPartError("odd", "engine"), KeyError("gone")
    assert sendable_error(Outcome(TrialState.FAIL, error=plain, told="KeyError: gone")) is plain
    told = sendable_error(Outcome(TrialState.FAIL, error=odd, told="TwoPartError: odd engine"))
    assert (type(told), str(told)) == (SweepError, "TwoPartError: odd engine")


def test_a_trial_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    sweeper = RLHPOSweeper("s", 1, SPACE, tmp_path / "study.journal", n_jobs=2, max_retries=1)
    with pytest.raises(SweepError, match=r"died 2 times, at last: worker process .* was killed by SIGKILL"):
        sweeper.sweep(sweep_objectives.always_killed)


def test_an_objective_that_no_process_can_import_is_refused_by_name() -> None:
    def closure(params: dict) -> float:
        return 0.0

    for objective, name in ((closure, "closure"), (lambda params: 0.0, "<lambda>")):
        with pytest.raises(ValueError, match=rf"objective .*{name} cannot be sent to worker processes"):
            RLHPOSweeper("s", 4, SPACE, n_jobs=2).sweep(objective)


def test_a_script_without_its_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from archetype_dagster.sweeps import RLHPOSweeper\n"
        "from sweep_objectives import parabola, SPACE\n"
        "RLHPOSweeper('s', 4, SPACE, n_jobs=2).sweep(parabola)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert "must do so under `if __name__ == '__main__':`" in run.stderr
