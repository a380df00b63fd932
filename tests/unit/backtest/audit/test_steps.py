"""Per-step files: bounded, complete, repeatable."""

from __future__ import annotations

import polars as pl
import pytest

from archetype_dagster.backtest.audit import write_steps
from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.settings import ExecutionSettings


@pytest.fixture
def steps(priced):
    return replay_priced(
        [2, 0, 0, 1, 2, 1, 1], priced([100 + k / 3 for k in range(7)], rate=0.01), settings=ExecutionSettings()
    )


def test_the_files_together_are_the_ledger(steps, tmp_path):
    files = write_steps(steps, tmp_path / "new", rows_per_file=3)
    assert [file.name for file in files] == ["steps-00000.csv", "steps-00001.csv", "steps-00002.csv"]
    parts = [pl.read_csv(file, try_parse_dates=True) for file in files]
    assert [part.height for part in parts] == [3, 3, 1]
    whole = pl.concat(parts)
    # Shortest digits that read back as the same number: nothing is lost in the text.
    assert whole["net_value"].to_list() == steps.net_value.tolist()
    assert whole.columns == steps.frame().columns


def test_the_same_ledger_gives_the_same_bytes(steps, tmp_path):
    one, other = (write_steps(steps, tmp_path / name, rows_per_file=4) for name in ("one", "other"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


def test_files_of_a_longer_ledger_do_not_stay(steps, tmp_path):
    write_steps(steps, tmp_path, rows_per_file=1)
    (tmp_path / "notes.csv").write_text("kept")
    [file] = write_steps(steps, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.csv", file.name]


def test_a_file_without_rows_is_refused(steps, tmp_path):
    with pytest.raises(ValueError, match="rows_per_file must be positive, got rows_per_file=0"):
        write_steps(steps, tmp_path, rows_per_file=0)
