"""The journal and its state agree whatever a kill left, and damage is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archetype_dagster.errors import ArtifactError
from archetype_dagster.paper_trading import Journal

RECORDS = [{"kind": "bar", "price": 1 / 3 + number} for number in range(4)]


def write(directory: Path, count: int = 4) -> Path:
    with Journal(directory) as journal:
        for number, record in enumerate(RECORDS[:count]):
            journal.commit(record, {"bars": number + 1})
    return directory / "journal.jsonl"


def test_records_and_state_come_back(tmp_path: Path):
    write(tmp_path, 2)
    with Journal(tmp_path) as journal:
        assert journal.state == {"bars": 2, "seq": 2}
        journal.commit(RECORDS[2], {"bars": 3})
        journal.commit(RECORDS[3], {"bars": 4})
        assert list(journal.records()) == [{"seq": seq, **record} for seq, record in enumerate(RECORDS, 1)]
    assert (tmp_path / "journal.jsonl").read_bytes() == write(tmp_path / "whole").read_bytes()


def test_the_state_is_on_disk_before_the_line_and_both_before_the_commit_returns(tmp_path: Path):
    """What a kill cannot show, because the kernel keeps what was not synced: the calls, in their order."""
    calls: list[str] = []

    def noted(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ == os.fsync.__module__:
            calls.append(function.__name__)

    with Journal(tmp_path) as journal:
        sys.setprofile(noted)
        journal.commit(RECORDS[0], {"bars": 1})
        sys.setprofile(None)
    assert [name for name in calls if name in ("fsync", "replace", "write")] == [
        *("fsync", "replace", "fsync"),
        *("write", "fsync"),
    ]


def test_the_name_of_every_new_folder_is_on_disk_before_the_journal_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: set[int] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with Journal(tmp_path / "paper" / "ETH"):
        assert {tmp_path.stat().st_ino, (tmp_path / "paper").stat().st_ino} <= synced
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot make the folder"):
        Journal(tmp_path / "file" / "ETH")


def test_a_line_cut_at_any_byte_is_completed_from_the_state(tmp_path: Path):
    whole = write(tmp_path / "whole").read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for kept in range(last, len(whole) + 1):
        torn = tmp_path / f"torn{kept}"
        shutil.copytree(tmp_path / "whole", torn)
        (torn / "journal.jsonl").write_bytes(whole[:kept])
        with Journal(torn) as journal:
            assert journal.state == {"bars": 4, "seq": 4}
        assert (torn / "journal.jsonl").read_bytes() == whole


def test_a_state_half_written_counts_for_nothing_and_is_cleared_away(tmp_path: Path):
    write(tmp_path, 3)
    (tmp_path / ".state.json.17.abc.tmp").write_text('{"version":1,"se')
    with Journal(tmp_path) as journal:
        assert journal.state == {"bars": 3, "seq": 3}
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob(".state*"))


def test_damage_is_refused_with_its_place(tmp_path: Path):
    whole = write(tmp_path / "whole").read_bytes()
    lines = whole.splitlines(keepends=True)
    edited = json.loads(lines[1])
    edited["price"] = 7.0
    damaged = {
        "line 2: changed": [
            lines[0],
            json.dumps(edited, separators=(",", ":")).encode().ljust(len(lines[1]) - 1) + b"\n",
        ],
        "line 1: changed": [lines[1], lines[0]],
        "line 1: not JSON": [b"x" * (len(lines[0]) - 1) + b"\n", lines[1]],
        "are not of each other": [lines[0]],
    }
    for message, first in damaged.items():
        folder = tmp_path / message
        shutil.copytree(tmp_path / "whole", folder)
        rest = lines[2:] if len(first) == 2 else []
        (folder / "journal.jsonl").write_bytes(b"".join([*first, *rest]))
        with pytest.raises(ArtifactError, match=message):
            Journal(folder)


def test_records_beyond_the_state_are_refused(tmp_path: Path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"seq":5}\n')
    with pytest.raises(ArtifactError, match="are not of each other"):
        Journal(tmp_path)
    (tmp_path / "state.json").unlink()
    with pytest.raises(ArtifactError, match=r"has records, but .*state\.json is gone"):
        Journal(tmp_path)


def test_a_newer_state_is_refused(tmp_path: Path):
    write(tmp_path, 1)
    state = tmp_path / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "version": 2}))
    with pytest.raises(ArtifactError, match="has version 2, this version reads 1"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda kept: {**kept, "state": {"bars": 7}}, "was changed since it was written"),
        (lambda kept: {name: value for name, value in kept.items() if name != "line"}, "was changed since"),
        (lambda kept: [], "has version None"),
    ],
)
def test_a_changed_state_is_refused(tmp_path: Path, content: Callable[[dict[str, Any]], Any], message: str):
    write(tmp_path, 2)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(content(json.loads(state.read_text()))))
    for _ in range(2):
        with pytest.raises(ArtifactError, match=message):
            Journal(tmp_path)


def test_one_journal_has_one_trader(tmp_path: Path):
    with Journal(tmp_path), pytest.raises(ArtifactError, match="in use by another paper trader"):
        Journal(tmp_path)
    with Journal(tmp_path):
        pass
