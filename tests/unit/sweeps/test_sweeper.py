import functools
import logging
from pathlib import Path

import optuna
import polars as pl
import pytest
import sweep_objectives
from sweep_objectives import SPACE, parabola

from archetype_dagster.errors import SweepError
from archetype_dagster.sweeps import RLHPOSweeper, SearchSpaceDef
from archetype_dagster.sweeps.book import StudyBook
from archetype_dagster.sweeps.storage import StudyStorage

SETTINGS = ["x", "kind", "value", "state", "draw"]


class Interrupting:
    """An objective that is interrupted at its `call`-th call."""

    def __init__(self, call: int) -> None:
        self.calls, self.call = 0, call

    def __call__(self, params: dict) -> float:
        self.calls += 1
        if self.calls == self.call:
            raise KeyboardInterrupt
        return parabola(params)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_seeded_serial_sweep_repeats_exactly(sampler: str) -> None:
    first, again = (RLHPOSweeper("s", 20, SPACE, seed=3, sampler=sampler).sweep(parabola) for _ in range(2))
    assert first.trials.select(SETTINGS).equals(again.trials.select(SETTINGS))
    assert (first.best_params, first.best_value) == (again.best_params, again.best_value)
    other = RLHPOSweeper("s", 20, SPACE, seed=4, sampler=sampler).sweep(parabola)
    assert not other.trials["x"].equals(first.trials["x"])
    assert first.trials["x"].n_unique() == 20


@pytest.mark.parametrize(("storage", "n_trials"), [("study.journal", 25), ("sqlite:///study.db", 8)])
def test_an_interrupted_sweep_goes_on_by_name_as_if_it_had_not_been(
    storage: str, n_trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = RLHPOSweeper("s", n_trials, SPACE).sweep(parabola)
    with pytest.raises(KeyboardInterrupt):
        RLHPOSweeper("s", n_trials, SPACE, storage).sweep(Interrupting(7))
    rest = Interrupting(0)
    resumed = RLHPOSweeper("s", n_trials, SPACE, storage).sweep(rest)
    assert rest.calls == n_trials - 6
    complete = resumed.trials.filter(state="complete")
    assert complete.sort("draw").select(SETTINGS).equals(whole.trials.select(SETTINGS))
    [lost] = resumed.trials.filter(state="failed").iter_rows(named=True)
    assert (lost["number"], lost["draw"], lost["error"]) == (6, 6, "the sweep was interrupted")
    assert complete.filter(retry_of=6)["draw"].to_list() == [6]


def test_a_trial_is_not_given_up_for_being_interrupted(tmp_path: Path) -> None:
    sweep = functools.partial(RLHPOSweeper, "s", 3, SPACE, tmp_path / "study.journal", max_retries=0)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            sweep().sweep(Interrupting(1))
    found = sweep().sweep(parabola)
    assert found.trials.filter(state="complete")["draw"].to_list() == [0, 1, 2]


def test_an_interruption_leaves_no_trial_running_not_even_one_that_had_just_begun(tmp_path: Path) -> None:
    storage = StudyStorage.of(tmp_path / "study.journal", n_jobs=1)
    book = StudyBook(storage, storage.open(), name="s", direction="maximize", settings={}, max_retries=0)
    book.ask(1)
    # As `ask` does, but interrupted before it has made its entry.
    book.study.ask()
    book.lose_running("the sweep was interrupted")
    assert [trial.state.name for trial in book.trials()] == ["FAIL", "FAIL", "WAITING", "WAITING"]


def test_a_study_that_has_all_its_trials_runs_none_and_one_that_is_raised_runs_the_rest(tmp_path: Path) -> None:
    sweep = functools.partial(RLHPOSweeper, "s", search_space=SPACE, storage=tmp_path / "study.journal")
    assert sweep(n_trials=5).sweep(parabola).n_trials == 5
    idle = Interrupting(1)
    assert sweep(n_trials=5).sweep(idle).processes == ()
    assert idle.calls == 0
    more = Interrupting(0)
    assert sweep(n_trials=8).sweep(more).n_trials == 8
    assert more.calls == 3


def test_the_best_is_the_greatest_or_the_least_value() -> None:
    best = RLHPOSweeper("s", 15, SPACE).sweep(parabola)
    assert best.best_value == best.trials["value"].max() == parabola(best.best_params)
    assert best.trials.row(best.best_trial, named=True)["value"] == best.best_value
    least = RLHPOSweeper("s", 15, SPACE, direction="minimize").sweep(parabola)
    assert least.best_value == least.trials["value"].min()


def test_a_failed_trial_says_why_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "archetype_dagster"):
        result = RLHPOSweeper("s", 20, SPACE, sampler="random").sweep(sweep_objectives.failing_for_b)
    failed = result.trials.filter(state="failed")
    assert result.n_trials + result.n_failed == 20
    assert failed["kind"].unique().to_list() == ["b"]
    assert failed["error"].unique().to_list() == ["RuntimeError: no b"]
    assert caplog.text.count("RuntimeError: no b") == result.n_failed
    assert result.best_params["kind"] == "a"


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (float("nan"), "must return a finite number, got nan"),
        ([1.0, 2.0], r"must return one number, got \[1.0, 2.0\]"),
        (None, "must return one number, got None"),
    ],
)
def test_a_value_that_is_no_number_fails_the_trial(returned: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RLHPOSweeper("s", 2, SPACE).sweep(lambda params: returned)


def test_a_list_of_one_number_is_that_number() -> None:
    result = RLHPOSweeper("s", 3, SPACE).sweep(lambda params: [parabola(params)])
    assert result.best_value == parabola(result.best_params)


def test_when_all_fail_the_first_error_is_raised_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="broken engine 0") as raised:
        RLHPOSweeper("s", 4, SPACE).sweep(sweep_objectives.failing)
    assert raised.value.__notes__ == [
        "raised by trial 0",
        "no trial of study 's' is complete: 0 trials were pruned, 4 failed",
    ]


@pytest.mark.parametrize("pruner", ["median", "hyperband", optuna.pruners.PercentilePruner(25.0, n_startup_trials=1)])
def test_reports_let_the_pruner_end_a_poor_trial_early(pruner: str | optuna.pruners.BasePruner) -> None:
    result = RLHPOSweeper("s", 40, SPACE, sampler="random", pruner=pruner).sweep(sweep_objectives.learning)
    assert result.n_pruned > 0
    assert result.n_tried == result.n_trials + result.n_pruned == 40
    assert result.n_failed == 0
    reports = result.trials.group_by("state").agg(pl.col("reports").mean(), pl.col("value").mean())
    by_state = {row["state"]: row for row in reports.iter_rows(named=True)}
    assert by_state["complete"]["reports"] == 10 > by_state["pruned"]["reports"]
    assert by_state["complete"]["value"] > by_state["pruned"]["value"]
    unpruned = RLHPOSweeper("s", 40, SPACE, sampler="random", pruner="none").sweep(sweep_objectives.learning)
    assert unpruned.n_pruned == 0


def test_progress_is_told_the_trials_done_and_the_best() -> None:
    told: list = []

    class Listener:
        def start(self, description: str, total: int) -> None:
            told.append((description, total))

        def advance(self, completed: int, metrics: dict) -> None:
            told.append((completed, metrics["best"]))

        def finish(self) -> None:
            told.append("finished")

    result = RLHPOSweeper("s", 3, SPACE, progress=Listener()).sweep(parabola)
    assert told[0] == ("sweep s", 3)
    assert [completed for completed, _ in told[1:4]] == [1, 2, 3]
    assert told[3] == (3, result.best_value)
    assert told[4:] == ["finished"]


def test_a_study_of_other_settings_is_not_mixed_with_these(tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    RLHPOSweeper("s", 2, SPACE, journal).sweep(parabola)
    same = {"study_name": "s", "n_trials": 3, "search_space": SPACE, "storage": journal}
    for other, told in (
        ({"seed": 1}, "was begun with seed=0 where this has 1"),
        ({"direction": "minimize"}, "was begun with direction=maximize where this has minimize"),
        ({"search_space": {**SPACE, "x": SearchSpaceDef("uniform", -3, 4)}}, "was begun with space="),
    ):
        with pytest.raises(SweepError, match=told):
            RLHPOSweeper(**{**same, **other}).sweep(parabola)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    optuna.create_study(study_name="foreign", storage=optuna.storages.JournalStorage(backend)).ask()
    with pytest.raises(SweepError, match="'foreign' was not made by a sweep of this library"):
        RLHPOSweeper("foreign", 3, SPACE, journal).sweep(parabola)


def test_one_sweep_at_a_time_holds_a_study(tmp_path: Path) -> None:
    sweep = functools.partial(RLHPOSweeper, n_trials=2, search_space=SPACE, storage=tmp_path / "study.journal")

    def nested(params: dict) -> float:
        with pytest.raises(SweepError, match=r"study 's' in .*study\.journal is being swept by another process"):
            sweep("s").sweep(parabola)
        return sweep("another").sweep(parabola).best_value

    assert sweep("s").sweep(nested).n_failed == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n_trials": 0}, "n_trials must be positive, got n_trials=0"),
        ({"n_jobs": -1}, "n_jobs must be positive, got n_jobs=-1"),
        ({"max_retries": -1}, "max_retries must not be negative, got max_retries=-1"),
        ({"study_name": ""}, "study_name must not be empty"),
        ({"search_space": {}}, "search_space must define at least one parameter"),
        ({"direction": "up"}, "direction must be one of maximize, minimize, got direction='up'"),
        ({"sampler": "grid"}, "sampler must be one of tpe, random, got sampler='grid'"),
        ({"pruner": "best"}, "pruner must be one of median, hyperband, none or Optuna's, got pruner='best'"),
        ({"storage": "sqlite:///a.db", "n_jobs": 8}, "sqlite serves one process, got n_jobs=8: name a journal file"),
        ({"storage": "mongodb://host/a"}, "storage must be a path or a URL of sqlite, .*got mongodb://"),
    ],
)
def test_an_argument_out_of_range_is_refused(arguments: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RLHPOSweeper(**{"study_name": "s", **arguments})


@pytest.mark.parametrize("objective", [lambda: 0.0, lambda params, trial, more: 0.0])
def test_an_objective_with_other_arguments_is_refused(objective: object) -> None:
    with pytest.raises(ValueError, match=r"the objective must take \(params\) or \(params, trial\)"):
        RLHPOSweeper("s", 1, SPACE).sweep(objective)


def test_an_argument_with_a_default_is_not_mistaken_for_the_trial() -> None:
    def objective(params: dict, scale: float = 2.0) -> float:
        return scale * params["x"]

    result = RLHPOSweeper("s", 1, SPACE).sweep(objective)
    assert result.best_value == 2 * result.best_params["x"]
