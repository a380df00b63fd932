"""The sweeper: many trials of one objective, in this process or in many, over a study that can be resumed."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import optuna
from optuna.pruners import BasePruner
from optuna.trial import TrialState

from archetype_dagster.errors import SweepError
from archetype_dagster.sweeps.book import DONE, StudyBook
from archetype_dagster.sweeps.result import SweepResult, trials_table
from archetype_dagster.sweeps.space import DEFAULT_SPACE, SearchSpace
from archetype_dagster.sweeps.storage import HEARTBEAT_SECONDS, StudyStorage
from archetype_dagster.sweeps.trials import PRUNERS, SAMPLERS, Objective, TrialRunner, takes_trial
from archetype_dagster.sweeps.workers import WorkerPool, refuse_unsendable
from archetype_dagster.types import NoProgress, Progress

_DIRECTIONS: Final = ("maximize", "minimize")


class RLHPOSweeper:
    """Searches a space for the parameters with the best value.

    `n_trials` counts the complete and the pruned trials of the study, whenever they were run: a sweep of a study
    that has some already runs those that are missing. Every draw has a random stream of its own, made of `seed` and
    the number of the draw. So a sweep with one process repeats exactly, also when it was interrupted, and the
    `random` sampler draws the same settings however many processes there are; what `tpe` draws in many processes
    depends on which trials have ended by then.

    Args:
        study_name: name by which the study is resumed.
        n_trials: trials that the study shall have.
        search_space: definitions by parameter; `DEFAULT_SPACE` where none is given.
        storage: None keeps the study in memory (with `n_jobs` > 1 in a journal that is deleted at the end); the path
            of a journal file; `sqlite:///FILE`, for one process; or `postgresql+psycopg2://` or `mysql://`, on which
            several machines may sweep at once.
        n_jobs: 1 runs the trials in this process, more in as many worker processes.
        direction: `maximize` or `minimize`.
        seed: of all draws.
        sampler: `tpe` or `random`.
        pruner: `median`, `hyperband`, `none`, or one of Optuna's; it judges what the objective reports.
        max_retries: how often a trial whose process died is run again, with the same parameters.
        tb_logs: folder of TensorBoard directories, one a trial (`make_tb_log_dir`); None for none.
        progress: told the trials done and the best value.

    Raises:
        ValueError: an argument out of range, or a storage that `n_jobs` processes cannot share.
    """

    def __init__(
        self,
        study_name: str,
        n_trials: int = 100,
        search_space: SearchSpace | None = None,
        storage: str | Path | None = None,
        n_jobs: int = 1,
        *,
        direction: str = "maximize",
        seed: int = 0,
        sampler: str = "tpe",
        pruner: str | BasePruner = "median",
        max_retries: int = 2,
        tb_logs: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        for name, value in (("n_trials", n_trials), ("n_jobs", n_jobs)):
            if value < 1:
                raise ValueError(f"{name} must be positive, got {name}={value}")
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative, got max_retries={max_retries}")
        for name, chosen, choices in (("direction", direction, _DIRECTIONS), ("sampler", sampler, SAMPLERS)):
            if chosen not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {name}={chosen!r}")
        if isinstance(pruner, str) and pruner not in PRUNERS:
            raise ValueError(f"pruner must be one of {', '.join(PRUNERS)} or Optuna's, got pruner={pruner!r}")
        if not study_name:
            raise ValueError("study_name must not be empty")
        self.space = dict(DEFAULT_SPACE if search_space is None else search_space)
        if not self.space:
            raise ValueError("search_space must define at least one parameter")
        self.study_name, self.n_trials, self.n_jobs = study_name, n_trials, n_jobs
        self.direction, self.seed, self.sampler, self.max_retries = direction, seed, sampler, max_retries
        self.pruner = PRUNERS[pruner]() if isinstance(pruner, str) else pruner
        self.tb_logs = None if tb_logs is None else Path(tb_logs)
        self._progress = progress or NoProgress()
        self._storage = StudyStorage.of(storage, n_jobs=n_jobs)
        # A study in memory lives as long as its sweeper.
        self._memory = self._storage.open() if self._storage.kind == "memory" and n_jobs == 1 else None

    def sweep(self, objective_fn: Objective) -> SweepResult:
        """Run the trials that the study lacks.

        An interruption stops the workers; what they were running is queued again for the next call.

        Args:
            objective_fn: takes (params), or (params, trial) to call `trial.report(value, step)` and
                `trial.should_prune()` and raise `optuna.TrialPruned`; returns one finite number. With `n_jobs` > 1 it
                must lie at the top of a module, or be a `functools.partial` of such a function. What it raises fails
                the trial, and the others go on.

        Raises:
            ValueError: an objective that no worker process can import, or with other arguments.
            SweepError: the study is of other settings, or another process is sweeping it.
            Exception: no trial of the study is complete: the first error of this call, as the objective raised it.
        """
        takes_trial(objective_fn)
        with ExitStack() as stack:
            storage = self._storage
            if storage.kind == "memory" and self._memory is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-")))
                storage = StudyStorage("journal", str(folder / "study.journal"))
            runner = TrialRunner(
                storage, self.study_name, self.space, objective_fn, self.sampler, self.pruner, self.seed, self.tb_logs
            )
            if self.n_jobs > 1:
                refuse_unsendable(runner)
            stack.enter_context(storage.exclusive(self.study_name))
            book = self._opened(storage)
            stack.callback(book.close)
            book.recover()
            self._progress.start(f"sweep {self.study_name}", self.n_trials)
            try:
                processes = self._parallel(book, runner) if self.n_jobs > 1 else self._serial(book, runner)
            finally:
                book.lose_running("the sweep was interrupted")
            self._progress.finish()
            return self._result(book, processes)

    def _opened(self, storage: StudyStorage) -> StudyBook:
        return StudyBook(
            storage,
            self._memory or storage.open(),
            name=self.study_name,
            direction=self.direction,
            settings={
                "space": {name: definition.as_json() for name, definition in self.space.items()},
                "seed": self.seed,
                "sampler": self.sampler,
            },
            max_retries=self.max_retries,
        )

    def _serial(self, book: StudyBook, runner: TrialRunner) -> set[int]:
        study = optuna.load_study(study_name=self.study_name, storage=book.study._storage, pruner=self.pruner)
        processes = set()
        while book.missing(self.n_trials) > 0:
            processes.add(os.getpid())
            assignment = book.ask(os.getpid())
            book.tell(assignment, runner.run(study, assignment))
            self._advance(book)
        return processes

    def _parallel(self, book: StudyBook, runner: TrialRunner) -> set[int]:
        processes: set[int] = set()
        size = min(self.n_jobs, book.missing(self.n_trials))
        if size < 1:
            return processes
        with WorkerPool(runner, size) as pool:
            while True:
                book.recover()
                for worker in pool.idle[: max(book.missing(self.n_trials), 0)]:
                    pool.assign(worker, book.ask(worker.pid))
                    processes.add(worker.pid)
                if not pool.busy and book.missing(self.n_trials) < 1:
                    return processes
                for worker, assignment, outcome in pool.finished(HEARTBEAT_SECONDS):
                    if outcome is None:
                        book.lost(assignment, pool.replace(worker))
                    else:
                        book.tell(assignment, outcome)
                self._advance(book)

    def _advance(self, book: StudyBook) -> None:
        best = max if self.direction == "maximize" else min
        values = [trial.value for trial in book.trials(TrialState.COMPLETE) if trial.value is not None]
        self._progress.advance(len(book.trials(*DONE)), {"best": best(values)} if values else {})

    def _result(self, book: StudyBook, processes: set[int]) -> SweepResult:
        trials = book.trials()
        counts = {state: sum(trial.state is state for trial in trials) for state in TrialState}
        if not counts[TrialState.COMPLETE]:
            told = f"{counts[TrialState.PRUNED]} trials were pruned, {counts[TrialState.FAIL]} failed"
            error = book.first_error or SweepError(told)
            error.add_note(f"no trial of study {self.study_name!r} is complete: {told}")
            raise error
        best = book.study.best_trial
        return SweepResult(
            study_name=self.study_name,
            best_params=best.params,
            best_value=book.study.best_value,
            best_trial=best.number,
            n_trials=counts[TrialState.COMPLETE],
            n_pruned=counts[TrialState.PRUNED],
            n_failed=counts[TrialState.FAIL],
            trials=trials_table(trials, list(self.space)),
            processes=tuple(sorted(processes)),
        )
