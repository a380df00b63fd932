"""Killed with SIGKILL at random moments and started again, a trader's journal is that of one never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from archetype_dagster.market.sources import bars_for
from archetype_dagster.settings import load_settings

SERVER = Path(__file__).with_name("standin.py")
KILLED = -signal.SIGKILL
Rows = list[dict[str, Any]]


class Server:
    """Trading processes, each forked from one that has only imported the library."""

    def __init__(self, *bundle: Path) -> None:
        repository = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": repository, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), *map(str, bundle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
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


@contextmanager
def serving(*bundle: Path) -> Iterator[Server]:
    """A server of the stand-in policy, or of a bundle."""
    server = Server(*bundle)
    with server.process:
        yield server
        assert server.process.stdin is not None
        server.process.stdin.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


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


def test_twenty_kills_leave_no_trace_of_a_bundle(small_bundle: Path, tmp_path: Path):
    span = {"start": "2023-01-02T00:00:00Z", "end": "2023-01-03T12:00:00Z"}
    settings = load_settings("smoke", {f"market.synthetic.{name}": date for name, date in span.items()})
    rows = bars_for(settings, "ETH").drop("segment").rows(named=True)
    with serving(small_bundle) as server:
        # An outage behind which a horizon begins anew.
        check_kills(server, tmp_path, rows[:120] + rows[124:], kills=20)
    records = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()
    decided = [json.loads(record)["decision"] for record in records]
    assert len({one["action"] for one in decided if one}) > 1
    assert any(one["overridden"] for one in decided if one)


def test_kills_of_a_followed_feed_that_grows_meanwhile_leave_no_trace(
    server: Server, tmp_path: Path, make_rows: Callable[..., Rows], with_faults: Callable[[Rows], Rows]
):
    rows, folder = with_faults(make_rows(120)), tmp_path / "feed"
    folder.mkdir()
    lines = pl.DataFrame(rows[:61]).write_csv().splitlines(keepends=True)
    generator, reached = np.random.default_rng(7), [0]

    def killed(phase: str, moment: int) -> None:
        server.killed(tmp_path / "killed", folder, phase, moment)
        reached.append((tmp_path / "killed" / "journal.jsonl").read_bytes().count(b"\n"))

    # A file that grows by twenty bars and half a line, then files that are added.
    for known in range(20, 61, 20):
        (folder / "a.csv").write_text("".join(lines[: known + 1]) + lines[known + 1][:40])
        killed("work", int(generator.integers(1, 4_000)))
    (folder / "a.csv").write_text("".join(lines))
    for name, begin, end in (("b", 61, 90), ("c", 90, 91), ("d", 91, len(rows))):
        pl.DataFrame(rows[begin:end]).write_parquet(folder / f".{name}.tmp")
        (folder / f".{name}.tmp").rename(folder / f"{name}.parquet")
        killed("work", int(generator.integers(1, 8_000)))
        killed("start", int(generator.integers(1, 8_000)))
    assert reached == sorted(reached)
    assert len(set(reached)) > 5
    for directory in ("killed", "whole"):
        server.whole(tmp_path / directory, folder)
    for name in ("journal.jsonl", "state.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "whole" / "journal.jsonl").read_bytes().count(b"\n") == len(rows)


@pytest.mark.endurance
def test_many_kills_leave_no_trace(server: Server, tmp_path: Path, make_rows: Callable[..., Rows]):
    check_kills(server, tmp_path, make_rows(1_000), kills=200)
