"""Which files of a source are new and whole, remembered from one look to the next as plain JSON.

A file counts as whole once it has been left alone: two looks found the same size and time, and that time is
old enough. Nobody who writes a file announces its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

Stamp = tuple[int, int]
"""Bytes and modification time, nanoseconds."""


@dataclass(frozen=True)
class Arrivals:
    """What a look at some files remembers.

    Attributes:
        taken: files that were reported, with the stamp they had.
        waiting: files that were seen and may not be whole, with the stamp they had.
    """

    taken: dict[str, Stamp]
    waiting: dict[str, Stamp]

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self | None:
        """What an earlier look has left; None for the first look.

        Raises:
            ValueError: not a cursor of this class.
        """
        if cursor is None:
            return None
        told = json.loads(cursor)
        stamps = {
            name: {str(file): (int(size), int(time)) for file, (size, time) in told[name].items()}
            for name in ("taken", "waiting")
        }
        return cls(**stamps)

    @property
    def cursor(self) -> str:
        """The memory as text."""
        return json.dumps({"taken": self.taken, "waiting": self.waiting}, sort_keys=True)

    def look(self, files: Iterable[Path], *, now_ns: int, settle_seconds: float) -> tuple[list[Path], Arrivals]:
        """The files that are new or changed and whole, and what to remember.

        Args:
            files: the files there are; one that vanishes meanwhile is passed over.
            now_ns: the present, nanoseconds since 1970.
            settle_seconds: how long a file must have been left alone.
        """
        settled: list[Path] = []
        taken: dict[str, Stamp] = {}
        waiting: dict[str, Stamp] = {}
        for file in files:
            try:
                about = file.stat()
            except FileNotFoundError:
                continue
            name, stamp = str(file), (about.st_size, about.st_mtime_ns)
            if self.taken.get(name) == stamp:
                taken[name] = stamp
            elif self.waiting.get(name) == stamp and now_ns - about.st_mtime_ns >= settle_seconds * 1e9:
                taken[name] = stamp
                settled.append(file)
            else:
                waiting[name] = stamp
                if name in self.taken:
                    taken[name] = self.taken[name]
        return settled, Arrivals(taken, waiting)
