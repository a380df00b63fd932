"""Killed with SIGKILL at random moments and started again, a trader's journal is that of one never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

SERVER = Path(__file__).with_name("standin.py")
KILLED = -signal.SIGKILL
Rows = list[dict[str, Any]]


class Server:
    """Trading processes, each forked from one that has only imported the library."""

    def __init__(self) -> None:
        repository = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": repository, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def whole(self, directory: Path, feed: Path) -> tuple[int, int]:
        """Trade to the end; moments at which it might have been killed, until its first record and in all."""
        self._ask(directory, feed, "start", 0)
        first, last = map(int, self._line().split())
        assert int(self._line()) == 0
        return first, last

    def killed(self, directory: Path, feed: Path, phase: str, moment: int) -> None:
        """Trade until killed at a moment, counted from the start or from the first record of this process."""
        self._ask(directory, feed, phase, moment)
        assert int(self._line()) == KILLED

    def _ask(self, directory: Path, feed: Path, phase: str, moment: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\t{feed}\t{phase}\t{moment}\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with server.process:
        yield server
        assert server.process.stdin is not None
        server.process.stdin.close()


def check_kills(server: Server, folder: Path, rows: Rows, *, kills: int) -> None:
    """Kill a trader many times, one in four while it starts and the others at work, and compare."""
    feed = folder / "feed.parquet"
    pl.DataFrame(rows).write_parquet(feed)
    first, last = server.whole(folder / "whole", feed)
    generator = np.random.default_rng(3)
    bar, reached = (last - first) // len(rows), set()
    for kill in range(kills):
        phase, moments = ("start", first) if kill % 4 == 3 else ("work", 6 * bar * len(rows) // (5 * kills))
        server.killed(folder / "killed", feed, phase, int(generator.integers(1, moments)))
        journal = folder / "killed" / "journal.jsonl"
        reached.add(journal.read_bytes().count(b"\n"))
    assert len(reached) > kills // 2
    server.whole(folder / "killed", feed)
    for name in ("journal.jsonl", "state.json"):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert (folder / "whole" / "journal.jsonl").read_bytes().count(b"\n") == len(rows)


def test_twenty_kills_leave_no_trace(
    server: Server, tmp_path: Path, make_rows: Callable[..., Rows], with_faults: Callable[[Rows], Rows]
):
    check_kills(server, tmp_path, with_faults(make_rows(120)), kills=20)


@pytest.mark.endurance
def test_many_kills_leave_no_trace(server: Server, tmp_path: Path, make_rows: Callable[..., Rows]):
    check_kills(server, tmp_path, make_rows(1_000), kills=200)
