import os
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from archetype_dagster.sweeps import RLHPOSweeper
from archetype_dagster.sweeps.storage import StudyStorage


@pytest.fixture
def objectives(monkeypatch: pytest.MonkeyPatch):
    """What worker processes import, from the folder of the sweeper's other tests."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "unit" / "sweeps"))
    import sweep_objectives

    return sweep_objectives


def test_postgresql_keeps_the_trials_of_four_workers_and_finds_those_of_a_dead_machine(postgres_url: str, objectives):
    sweeper = RLHPOSweeper("s", 12, objectives.SPACE, postgres_url, n_jobs=4, sampler="random")
    result = sweeper.sweep(objectives.parabola)
    assert result.n_trials == 12
    assert len(result.processes) == 4
    assert set(result.trials["process"]) == set(result.processes)
    assert result.trials["draw"].to_list() == list(range(12))

    # A trial of another machine that beat once, an hour ago, and one whose heart beats.
    storage = StudyStorage.of(postgres_url, n_jobs=1).open()
    study = optuna.load_study(study_name="s", storage=storage)
    silent, living = study.ask(), study.ask()
    for trial in (silent, living):
        storage.record_heartbeat(trial._trial_id)
    with sqlalchemy.create_engine(postgres_url).begin() as connection:
        late = "UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour' WHERE trial_id = :trial"
        connection.execute(sqlalchemy.text(late), {"trial": silent._trial_id})
    again = RLHPOSweeper("s", 14, objectives.SPACE, postgres_url, sampler="random").sweep(objectives.parabola)
    assert again.n_trials == 13
    assert again.processes == (os.getpid(),)
    states = dict(again.trials.select("number", "state").iter_rows())
    assert (states[silent.number], states[living.number]) == ("failed", "running")
    [retry] = again.trials.filter(retry_of=silent.number).iter_rows(named=True)
    assert (retry["state"], retry["draw"]) == ("complete", 12)
    storage.remove_session()
