"""A study's own account: which trials are missing, running, done, lost. The sweep's process alone keeps it."""

from __future__ import annotations

import logging
import time
from typing import Final

import optuna
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from archetype_dagster.errors import SweepError
from archetype_dagster.sweeps.storage import HEARTBEAT_SECONDS, StudyStorage
from archetype_dagster.sweeps.trials import Assignment, Outcome
from archetype_dagster.types import JsonDict

SETTINGS: Final = "archetype_sweep"
TRIAL: Final = "archetype_trial"
ERROR: Final = "error"
DONE: Final = (TrialState.COMPLETE, TrialState.PRUNED)

_log = logging.getLogger(__name__)


class StudyBook:
    """Opens a study, or makes it, and keeps account of its trials.

    A trial is asked for, told or lost here. A lost trial, whose process died, is failed and queued again with the
    parameters it had, at most `max_retries` times; so is one that was interrupted, however often.

    Args:
        storage: where the study lives.
        opened: the storage, open in this process.
        name: of the study.
        direction: `maximize` or `minimize`.
        settings: what all trials of the study have in common; a study of others is refused.
        max_retries: of a trial whose process died.

    Raises:
        SweepError: the study was begun with other settings, or by other means.
    """

    def __init__(
        self,
        storage: StudyStorage,
        opened: optuna.storages.BaseStorage,
        *,
        name: str,
        direction: str,
        settings: JsonDict,
        max_retries: int,
    ) -> None:
        self._storage, self._opened, self._max_retries = storage, opened, max_retries
        # Each trial is announced by its end and the progress; Optuna's own lines would come between.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Trials are drawn by whoever runs them; this sampler is never asked.
        self.study = optuna.create_study(
            storage=opened,
            study_name=name,
            direction=StudyDirection[direction.upper()],
            load_if_exists=True,
            sampler=RandomSampler(),
        )
        self._require_settings({**settings, "direction": direction})
        self._running: dict[int, Assignment] = {}
        self._failed = 0
        self._looked = 0.0
        self.first_error: Exception | None = None

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The study's trials, of the given states or all; not to be changed."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def missing(self, n_trials: int) -> int:
        """How many trials must yet be begun for `n_trials` complete or pruned ones.

        A trial that failed by its own error counts against this sweep, or one that always fails would go on for ever.
        """
        return n_trials - len(self.trials(*DONE, TrialState.RUNNING)) - self._failed

    def ask(self, process: int) -> Assignment:
        """Begin the next trial, a queued one first, for the process of the given id."""
        trial = self.study.ask()
        facts = {"draw": self._draw(trial.number), **trial.user_attrs.get(TRIAL, {})}
        trial.set_user_attr(TRIAL, {**facts, "process": process})
        if self._storage.kind == "server":
            # The first beat: the sweep may die before the worker's.
            self._opened.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
        assignment = Assignment(trial._trial_id, trial.number, facts["draw"])
        self._running[trial.number] = assignment
        return assignment

    def tell(self, assignment: Assignment, outcome: Outcome) -> None:
        """Close a trial with its outcome."""
        del self._running[assignment.number]
        if outcome.error is not None:
            far = outcome.error.__traceback__ is None  # A traceback does not travel between processes.
            outcome.error.add_note(f"raised by trial {assignment.number}" + (f":\n{outcome.told}" if far else ""))
            self._give_up(assignment.number, outcome.error)
        self._close(assignment, outcome, f"{type(outcome.error).__name__}: {outcome.error}")

    def lost(self, assignment: Assignment, why: str, *, blameless: bool = False) -> None:
        """Close a trial whose process died and queue it again; a blameless one however often."""
        self._running.pop(assignment.number, None)
        self._close(assignment, Outcome(TrialState.FAIL), why)
        if not self._queue_again(self.study, self._opened.get_trial(assignment.trial_id), deaths=1 - blameless):
            self._give_up(assignment.number, SweepError(f"died {self._max_retries + 1} times, at last: {why}"))

    def lose_running(self, why: str) -> None:
        """Close all trials that this sweep began and did not close, and queue them again."""
        for assignment in list(self._running.values()):
            self.lost(assignment, why, blameless=True)
        # An interruption may come between a trial's beginning and its entry here.
        if self._storage.kind != "server":
            self._lose_left(why, blameless=True)

    def recover(self) -> None:
        """Close and queue again what dead sweeps left running."""
        if self._storage.kind == "server":
            if time.monotonic() - self._looked >= HEARTBEAT_SECONDS:
                self._looked = time.monotonic()
                self._storage.fail_silent_trials(self.study.study_name, self._silent)
            return
        self._lose_left("the sweep ended before it")

    def _lose_left(self, why: str, *, blameless: bool = False) -> None:
        """Lose what runs in the study, which no other sweep may hold, and not in this sweep."""
        for trial in self.trials(TrialState.RUNNING):
            if trial.number not in self._running:
                self.lost(Assignment(trial._trial_id, trial.number, 0), why, blameless=blameless)

    def _close(self, assignment: Assignment, outcome: Outcome, why: str) -> None:
        # Another machine may have taken a trial for lost whose heart had stopped for a while.
        if self._opened.get_trial(assignment.trial_id).state.is_finished():
            return
        if outcome.state is TrialState.FAIL:
            self._opened.set_trial_user_attr(assignment.trial_id, ERROR, why)
        self.study.tell(assignment.number, outcome.value, state=outcome.state, skip_if_finished=True)

    def _draw(self, number: int) -> int:
        """The trials before the one of this number that repeat no other: unique, whoever else asks meanwhile."""
        before = [trial.user_attrs.get(TRIAL, {}) for trial in self.trials() if trial.number < number]
        return sum("retry_of" not in facts for facts in before)

    def _give_up(self, number: int, error: Exception) -> None:
        self._failed += 1
        self.first_error = self.first_error or error
        _log.warning("trial %d failed: %s: %s", number, type(error).__name__, error)

    def _silent(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._queue_again(study, trial)

    def _queue_again(self, study: optuna.Study, trial: FrozenTrial, *, deaths: int = 1) -> bool:
        facts = {"draw": self._draw(trial.number), **trial.user_attrs.get(TRIAL, {})}
        deaths += facts.get("deaths", 0)
        if deaths > self._max_retries:
            return False
        study.enqueue_trial(dict(trial.params), {TRIAL: {**facts, "deaths": deaths, "retry_of": trial.number}})
        return True

    def _require_settings(self, settings: JsonDict) -> None:
        name, known = self.study.study_name, self.study.user_attrs.get(SETTINGS)
        if known is None and not self.trials():
            self.study.set_user_attr(SETTINGS, settings)
        elif known is None:
            raise SweepError(f"study {name!r} was not made by a sweep of this library; take another study_name")
        elif known != settings:
            told = [
                f"{key}={known.get(key)} where this has {settings.get(key)}"
                for key in sorted(known.keys() | settings.keys())
                if known.get(key) != settings.get(key)
            ]
            raise SweepError(f"study {name!r} was begun with {'; '.join(told)}; take another study_name to change it")

    def close(self) -> None:
        """Give a database's connections back."""
        backend = getattr(self._opened, "_backend", None)
        if isinstance(backend, RDBStorage):
            self._opened.remove_session()
            backend.engine.dispose()
