"""The journal of a paper trader and its state, written so that after any kill the two agree.

A commit writes the state first, whole and atomically, and in it the very line that the journal is about to
get and the length the journal had; then the line is appended and synced. Whatever a kill leaves behind, the
state holds what is missing: at the next start the line is completed. Each line ends with a check over itself
and all lines before it, so that a changed or missing line is found, and the state with one over itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from filelock import FileLock, Timeout

from archetype_dagster.artifacts import read_json, write_bytes_atomically
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

JOURNAL_FILE: Final = "journal.jsonl"
STATE_FILE: Final = "state.json"
STATE_VERSION: Final = 1
_CHECK_DIGITS: Final = 16


class Journal:
    """An open journal, held by one process; as a context it is closed at the end.

    Attributes:
        directory: folder of the journal, its state and its lock.
        state: the state of the last commit; None where there is none yet.
    """

    def __init__(self, directory: Path) -> None:
        """Open or begin the journal in a folder, and complete its last line where a kill cut it.

        Raises:
            ArtifactError: the folder cannot be made; another process holds it; journal and state are not of each
                other, damaged, or of another version.
        """
        self.directory = directory
        self.state: JsonDict | None = None
        self._check = ""
        self._size = 0
        _make_folder(directory)
        self._lock = FileLock(directory / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ArtifactError(f"{directory} is in use by another paper trader") from None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._recover()
        except ArtifactError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self.directory / JOURNAL_FILE

    def records(self) -> Iterator[JsonDict]:
        """Every record, oldest first.

        Raises:
            ArtifactError: a line is not the one that was written.
        """
        check = ""
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                record = _parsed(line, number, self.path)
                check = _check_of(check, record)
                if record.pop("check", None) != check or record.get("seq") != number:
                    raise ArtifactError(f"{self.path}, line {number}: changed since it was written, or lines are gone")
                yield record

    def commit(self, record: Mapping[str, Any], state: JsonDict) -> None:
        """Append a record and keep the state that follows from it; on return both are on disk.

        Args:
            record: plain JSON values; `seq` and `check` are added.
            state: plain JSON values.

        Raises:
            ArtifactError: the disk refuses; the next start finds either all of this commit or nothing of it.
        """
        seq = 1 if self.state is None else int(self.state["seq"]) + 1
        numbered: JsonDict = {"seq": seq, **record}
        check = _check_of(self._check, numbered)
        line = _line({**numbered, "check": check})
        kept = {"version": STATE_VERSION, "seq": seq, "offset": self._size, "line": line, "state": state}
        try:
            write_bytes_atomically(self.directory / STATE_FILE, _line({**kept, "check": _check_of("", kept)}).encode())
            self._append(line.encode())
        except OSError as error:
            raise ArtifactError(f"cannot write to {self.directory}: {error}") from error
        self.state, self._check = {**state, "seq": seq}, check

    def close(self) -> None:
        """Give the journal free for another process."""
        os.close(self._file)
        self._lock.release()

    def _append(self, content: bytes) -> None:
        while content:
            written = os.write(self._file, content)
            self._size += written
            content = content[written:]
        os.fsync(self._file)

    def _recover(self) -> None:
        self._size = os.fstat(self._file).st_size
        path = self.directory / STATE_FILE
        for unfinished in self.directory.glob(f".{STATE_FILE}.*.tmp"):
            unfinished.unlink()
        if not path.exists():
            if self._size:
                raise ArtifactError(f"{self.path} has records, but {path} is gone; begin another journal")
            return
        kept = read_json(path)
        version = kept.get("version") if isinstance(kept, dict) else None
        if version != STATE_VERSION:
            raise ArtifactError(f"{path} has version {version}, this version reads {STATE_VERSION}")
        if kept.get("check") != _check_of("", kept):
            raise ArtifactError(f"{path} was changed since it was written; begin another journal")
        line, offset = kept["line"].encode(), int(kept["offset"])
        tail = b"" if self._size < offset else os.pread(self._file, len(line) + 1, offset)
        if self._size < offset or not line.startswith(tail):
            raise ArtifactError(f"{self.path} and {path} are not of each other: one was changed; begin another journal")
        self._append(line[len(tail) :])
        # Read through once, so that damage is found before anything is added.
        for record in self.records():
            self._check = _check_of(self._check, record)
        self.state = {**kept["state"], "seq": kept["seq"]}


def _make_folder(directory: Path) -> None:
    """Make a folder and those above it; on return every name that is new is on disk."""
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            above = os.open(folder.parent, os.O_RDONLY)
            try:
                os.fsync(above)
            finally:
                os.close(above)
    except OSError as error:
        raise ArtifactError(f"cannot make the folder {directory}: {error}") from error


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def _check_of(before: str, record: Mapping[str, Any]) -> str:
    body = _line({name: value for name, value in record.items() if name != "check"})
    return hashlib.sha256((before + body).encode()).hexdigest()[:_CHECK_DIGITS]


def _parsed(line: bytes, number: int, path: Path) -> JsonDict:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ArtifactError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ArtifactError(f"{path}, line {number}: not a record")
    return record
