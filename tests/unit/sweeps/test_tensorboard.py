from pathlib import Path

import pytest
import sweep_objectives
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from archetype_dagster.sweeps import RLHPOSweeper, make_tb_log_dir


def curves(directory: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(directory), {"tensors": 0})
    events.Reload()
    return {
        tag: [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_each_trial_has_a_directory_of_its_own(tmp_path: Path) -> None:
    directories = {make_tb_log_dir(trial_id, tmp_path / "logs") for trial_id in (0, 1, 10, "baseline")}
    assert len(directories) == 4
    assert all(directory.is_dir() and directory.parent == tmp_path / "logs" for directory in directories)
    assert make_tb_log_dir(1, tmp_path / "logs") in directories


@pytest.mark.parametrize("trial_id", [-1, "", "..", "a/b", ".hidden"])
def test_a_trial_cannot_write_elsewhere(trial_id: int | str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trial_id must"):
        make_tb_log_dir(trial_id, tmp_path)


def test_a_sweep_writes_each_trial_s_parameters_reports_and_value(tmp_path: Path) -> None:
    sweeper = RLHPOSweeper("logged", 3, sweep_objectives.SPACE, pruner="none", tb_logs=tmp_path)
    result = sweeper.sweep(sweep_objectives.learning)
    for row in result.trials.iter_rows(named=True):
        written = curves(make_tb_log_dir(row["number"], tmp_path))
        assert written["params/x"] == [(0, pytest.approx(row["x"]))]
        assert written["objective/value"] == [(0, pytest.approx(row["value"]))]
        assert [step for step, _ in written["objective/reported"]] == list(range(10))
