from __future__ import annotations

import os
from pathlib import Path

import pytest

from archetype_dagster.market.arrivals import Arrivals

SETTLE = 60.0
NOW = 2_000_000_000 * 10**9


def write(file: Path, content: str, *, age: float) -> Path:
    file.write_text(content)
    moment = NOW - int(age * 1e9)
    os.utime(file, ns=(moment, moment))
    return file


def look(memory: Arrivals, *files: Path) -> tuple[list[Path], Arrivals]:
    found, later = memory.look(files, now_ns=NOW, settle_seconds=SETTLE)
    # What is remembered survives as text.
    again = Arrivals.of_cursor(later.cursor)
    assert again == later
    return found, later


def test_a_file_is_reported_once_after_two_looks(tmp_path: Path):
    file = write(tmp_path / "a.csv", "x", age=100)
    found, memory = look(Arrivals({}, {}), file)
    assert found == []
    found, memory = look(memory, file)
    assert found == [file]
    assert look(memory, file)[0] == []


def test_a_file_that_grows_or_is_young_is_not_whole(tmp_path: Path):
    file = write(tmp_path / "a.csv", "x", age=100)
    _, memory = look(Arrivals({}, {}), file)
    write(file, "xy", age=90)
    found, memory = look(memory, file)
    assert found == []
    write(file, "xy", age=1)
    _, memory = look(memory, file)
    found, memory = look(memory, file)
    assert found == []
    write(file, "xyz", age=61)
    _, memory = look(memory, file)
    assert look(memory, file)[0] == [file]


def test_a_replaced_file_is_reported_again_and_a_vanished_one_is_forgotten(tmp_path: Path):
    file, other = (write(tmp_path / name, "x", age=100) for name in ("a.csv", "b.csv"))
    _, memory = look(Arrivals({}, {}), file, other)
    found, memory = look(memory, file, other)
    assert found == [file, other]
    write(file, "z", age=80)
    _, memory = look(memory, file, other)
    found, memory = look(memory, file, other)
    assert found == [file]
    other.unlink()
    _, memory = look(memory, file, other)
    assert memory.taken.keys() == {str(file)}


def test_no_cursor_is_no_memory_and_a_foreign_one_is_refused():
    assert Arrivals.of_cursor(None) is None
    with pytest.raises(ValueError, match="Expecting value"):
        Arrivals.of_cursor("yesterday")
