"""Killed with SIGKILL at random moments and started again, a trader's journal is that of one never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

SERVER = Path(__file__).with_name("standin.py")
KILLS = 20


class Server:
    """Starts fresh trading processes by forking one that has only imported the library."""

    def __init__(self) -> None:
        repository = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": repository, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, directory: Path, feed: Path) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\t{feed}\n")
        self.process.stdin.flush()
        return int(self._line())

    def ended(self) -> int:
        return int(self._line())

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


def lines(directory: Path) -> int:
    journal = directory / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def killed_run(server: Server, directory: Path, feed: Path, *, bars: int, kills: int) -> list[int]:
    """Trade a feed to its end, killed on the way; the journal's length at each kill."""
    generator = np.random.default_rng(3)
    reached = []
    for target in sorted(generator.choice(np.arange(1, bars - 5), kills, replace=False).tolist()):
        process = server.start(directory, feed)
        while lines(directory) < target:
            time.sleep(0.0005)
        # Somewhere within the work on a bar, not always right after a line.
        time.sleep(generator.uniform(0, 0.004))
        os.kill(process, signal.SIGKILL)
        assert server.ended() == -signal.SIGKILL
        reached.append(lines(directory))
    server.start(directory, feed)
    assert server.ended() == 0
    return reached


def check_kills(server: Server, tmp_path: Path, rows: list[dict[str, object]], *, kills: int) -> None:
    feed = tmp_path / "feed.parquet"
    pl.DataFrame(rows).write_parquet(feed)
    server.start(tmp_path / "whole", feed)
    assert server.ended() == 0
    reached = killed_run(server, tmp_path / "killed", feed, bars=len(rows), kills=kills)
    assert len(set(reached)) > kills // 2
    for name in ("journal.jsonl", "state.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert lines(tmp_path / "killed") == len(rows)


def test_twenty_kills_leave_no_trace(
    server: Server, tmp_path: Path, make_rows: Callable[..., list], with_faults: Callable[[list], list]
):
    check_kills(server, tmp_path, with_faults(make_rows(160)), kills=KILLS)


@pytest.mark.endurance
def test_many_kills_leave_no_trace(server: Server, tmp_path: Path, make_rows: Callable[..., list]):
    check_kills(server, tmp_path, make_rows(20_000), kills=400)
