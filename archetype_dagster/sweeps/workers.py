"""Worker processes of a sweep: started afresh, given one trial after the other, replaced when they die.

The standard library's spawn start hands the objective over by its name, so a worker imports the module it lies in.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from threading import Thread
from types import TracebackType
from typing import Final, Self

from archetype_dagster.errors import SweepError
from archetype_dagster.sweeps.trials import Assignment, Outcome, TrialRunner

_READY: Final = "ready"
_PATIENCE_SECONDS: Final = 10
# Read when a library loads, so they must stand in the environment before a worker begins.
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "POLARS_MAX_THREADS")
_UNSENDABLE: Final = (PicklingError, AttributeError, ImportError, TypeError, ValueError)


@dataclass
class Worker:
    """One worker process and what it is doing.

    Attributes:
        process: the process.
        connection: to it.
        ready: it has said that it is there.
        assignment: the trial it was given; None while it waits for one.
    """

    process: BaseProcess
    connection: Connection
    ready: bool = False
    assignment: Assignment | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        if self.process.pid is None:
            raise SweepError("a worker was never started")
        return self.process.pid


class WorkerPool:
    """As many worker processes as asked for; leaving the context ends them.

    Args:
        runner: what each of them runs.
        size: how many.
    """

    def __init__(self, runner: TrialRunner, size: int) -> None:
        self._runner = runner
        self._size = size
        self._context = multiprocessing.get_context("spawn")
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        try:
            with _single_threaded():
                for _ in range(self._size):
                    self.workers.append(self._started())
            # None is given a trial before all are there, or the first would do the work of the others.
            for worker in self.workers:
                _greet(worker)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            for worker in self.idle:
                # One that died idle is gone already, which is what is wanted.
                with _gone_is_fine():
                    worker.connection.send(None)
            for worker in self.idle:
                worker.process.join(_PATIENCE_SECONDS)
        self._kill()

    @property
    def idle(self) -> list[Worker]:
        """Those that wait for a trial."""
        return [worker for worker in self.workers if worker.ready and worker.assignment is None]

    @property
    def busy(self) -> bool:
        """Whether any has a trial."""
        return any(worker.assignment is not None for worker in self.workers)

    def assign(self, worker: Worker, assignment: Assignment) -> None:
        """Give a worker its next trial; if it is dead already, `finished` says so."""
        worker.assignment = assignment
        with _gone_is_fine():
            worker.connection.send(assignment)

    def finished(self, timeout: float) -> list[tuple[Worker, Assignment, Outcome | None]]:
        """What ended within `timeout` seconds: worker, trial and outcome, None where the worker died of it.

        Those returned are idle again; the dead ones need `replace`.
        """
        waited_for: dict[object, Worker] = {
            worker.connection: worker for worker in self.workers if not worker.ready or worker.assignment is not None
        }
        ended = []
        for connection in wait([worker.connection for worker in waited_for.values()], timeout):
            worker = waited_for[connection]
            if worker.assignment is None:
                _greet(worker)
                continue
            outcome: Outcome | None = None
            with _gone_is_fine():
                outcome = worker.connection.recv()
            ended.append((worker, worker.assignment, outcome))
            worker.assignment = None
        return ended

    def replace(self, worker: Worker) -> str:
        """Start a new process in a dead worker's place; says what became of the old one."""
        worker.process.join(_PATIENCE_SECONDS)
        worker.connection.close()
        told = f"worker process {worker.pid} {_ending(worker.process)}"
        with _single_threaded():
            self.workers[self.workers.index(worker)] = self._started()
        return told

    def _started(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(self._runner, theirs), daemon=False)
        process.start()
        # Or a worker's death would never be seen: this process would hold the other end open.
        theirs.close()
        return Worker(process, ours)

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.process.is_alive():
                worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.connection.close()


def serve(runner: TrialRunner, connection: Connection) -> None:
    """The life of a worker: run what it is given until it is given None."""
    # The terminal sends Ctrl-C to all; the sweep's own process decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_die_with_parent, daemon=True).start()
    study = runner.open()
    connection.send(_READY)
    while (assignment := connection.recv()) is not None:
        outcome = runner.run(study, assignment)
        connection.send(outcome if outcome.error is None else replace(outcome, error=sendable_error(outcome)))


def refuse_unsendable(runner: TrialRunner) -> None:
    """Refuse an objective that a new process cannot import by its name.

    Raises:
        ValueError: a lambda, a closure, something that holds what cannot be sent, or a function typed at a prompt.
    """
    objective = runner.objective
    name = getattr(objective, "__qualname__", repr(objective))
    cure = "define it at the top of a module, and bind what it needs with functools.partial"
    try:
        ForkingPickler.dumps(objective)
    except _UNSENDABLE as error:
        raise ValueError(f"objective {name} cannot be sent to worker processes ({error}): {cure}") from error
    if getattr(objective, "__module__", None) == "__main__":
        import __main__

        if getattr(__main__, "__file__", None) is None and getattr(__main__, "__spec__", None) is None:
            raise ValueError(f"objective {name} was typed at a prompt, which no worker process can import: {cure}")


def sendable_error(outcome: Outcome) -> Exception:
    """The error itself if it survives the way to the other process, else one with its text."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(outcome.error))
    except _UNSENDABLE:
        return SweepError(outcome.told)
    return outcome.error or SweepError(outcome.told)


def _greet(worker: Worker) -> None:
    """Wait until a worker says that it is there."""
    ready = None
    with _gone_is_fine():
        ready = worker.connection.recv()
    if ready != _READY:
        worker.process.join(_PATIENCE_SECONDS)
        raise SweepError(
            f"a worker process {_ending(worker.process)} before its first trial; its own message stands above. "
            "A script that sweeps must do so under `if __name__ == '__main__':`, since workers import it"
        )
    worker.ready = True


def _ending(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Whoever is at the other end of a connection may be gone."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started here use one thread each, where nobody said otherwise: their number is the parallelism."""
    added = [name for name in _ONE_THREAD if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
