"""One trial from its parameters to its outcome, the same in the sweep's own process and in a worker."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from archetype_dagster.seeding import derive_seed
from archetype_dagster.sweeps.space import SearchSpace
from archetype_dagster.sweeps.storage import StudyStorage
from archetype_dagster.sweeps.tensorboard import log_trial

Objective = Callable[..., float | Sequence[float]]

_SAMPLERS: Final[dict[str, Callable[[int], BaseSampler]]] = {
    "tpe": lambda seed: TPESampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
SAMPLERS: Final = tuple(_SAMPLERS)
PRUNERS: Final[dict[str, Callable[[], BasePruner]]] = {
    "median": MedianPruner,
    "hyperband": HyperbandPruner,
    "none": NopPruner,
}


@dataclass(frozen=True)
class Assignment:
    """A trial that somebody is to run.

    Attributes:
        trial_id: the storage's name of it.
        number: its number in the study.
        draw: which draw of the sweep it is; a retry has that of the trial it repeats. Names its random stream.
    """

    trial_id: int
    number: int
    draw: int


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        state: complete, pruned or failed.
        value: of a complete one.
        error: of a failed one.
        told: the error with its traceback, as text.
    """

    state: TrialState
    value: float | None = None
    error: Exception | None = None
    told: str = ""


@dataclass(frozen=True)
class TrialRunner:
    """All that it takes to run any trial of one sweep.

    Attributes:
        storage: where the study lives.
        study_name: its name there.
        space: what is varied.
        objective: takes the parameters, or the parameters and the trial.
        sampler: name of the sampler.
        pruner: decides `trial.should_prune()`.
        seed: of the sweep.
        tb_logs: folder of one TensorBoard directory a trial; None for none.
    """

    storage: StudyStorage
    study_name: str
    space: SearchSpace
    objective: Objective
    sampler: str
    pruner: BasePruner
    seed: int
    tb_logs: Path | None

    def open(self) -> optuna.Study:
        """The study, which has been made, with a connection of its own to the storage."""
        storage = self.storage.open(made=True)
        return optuna.load_study(study_name=self.study_name, storage=storage, pruner=self.pruner)

    def run(self, study: optuna.Study, assignment: Assignment) -> Outcome:
        """Draw the parameters, ask the objective, and say how it went; the study is not told.

        What the objective raises is an outcome like any other.
        """
        # A stream for each draw: who runs it, and what was drawn before the sweep was resumed, make no difference.
        study.sampler = _SAMPLERS[self.sampler](derive_seed(self.seed, "sweep", assignment.draw) % 2**32)
        with self.storage.beating(study._storage, assignment.trial_id), _Caught() as caught:
            # A database's trials are known to a process only once it has read them.
            study.get_trials(deepcopy=False)
            trial = optuna.Trial(study, assignment.trial_id)
            params = {name: definition.suggest(trial, name) for name, definition in self.space.items()}
            value = _number(self.objective(params, trial) if takes_trial(self.objective) else self.objective(params))
            caught.outcome = Outcome(TrialState.COMPLETE, value)
        if self.tb_logs is not None:
            log_trial(self.tb_logs, study._storage.get_trial(assignment.trial_id), caught.outcome.value)
        return caught.outcome


@dataclass
class _Caught:
    """A context in which the objective, which is anybody's code, may raise what it wants."""

    outcome: Outcome = field(default_factory=lambda: Outcome(TrialState.FAIL))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, optuna.TrialPruned):
            self.outcome = Outcome(TrialState.PRUNED)
        elif isinstance(error, Exception):
            told = "".join(traceback.format_exception(error))
            self.outcome = Outcome(TrialState.FAIL, error=error, told=told)
        else:
            return False
        return True


def takes_trial(objective: Objective) -> bool:
    """Whether the objective wants the trial as its second argument: one without a default, or called `trial`.

    Raises:
        ValueError: it takes neither (params) nor (params, trial).
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [item for item in inspect.signature(objective).parameters.values() if item.kind in positional]
    wanted = len(taken) > 1 and (taken[1].default is inspect.Parameter.empty or taken[1].name == "trial")
    try:
        inspect.signature(objective).bind(*([None] * (1 + wanted)))
    except TypeError as error:
        raise ValueError(f"the objective must take (params) or (params, trial), got {objective!r}: {error}") from error
    return wanted


def _number(returned: Any) -> float:
    """The objective's value; a sequence of one number is that number."""
    if isinstance(returned, Sequence) and not isinstance(returned, str) and len(returned) == 1:
        returned = returned[0]
    try:
        value = float(returned)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the objective must return one number, got {returned!r}") from error
    if not math.isfinite(value):
        raise ValueError(f"the objective must return a finite number, got {value}")
    return value
