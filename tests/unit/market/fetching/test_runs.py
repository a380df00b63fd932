"""Runs against an archive on loopback: what is published, what is refused, what is resumed."""

from __future__ import annotations

import functools
import hashlib
import socket
import threading
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from archetype_dagster.errors import FetchError
from archetype_dagster.market.fetching import BinanceSeries, FetchReport, FetchStatus, RemoteFile, fetch_files, runs
from archetype_dagster.settings import FetchSettings
from archetype_dagster.types import NoProgress

CUT = 30_000


def fetch(files: Sequence[RemoteFile], output: Path, waits: list[float], **options: Any) -> FetchReport:
    """A run whose waits are noted instead of waited for, at half of the jitter."""
    return fetch_files(files, output, FetchSettings(**options), sleep=waits.append, jitter=lambda: 0.5)


def statuses(report: FetchReport) -> list[str]:
    return [outcome.status.value for outcome in report.outcomes]


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def path_of(file: RemoteFile) -> str:
    return f"/{file.path}"


def part_of(file: RemoteFile, output: Path) -> Path:
    return output / ".partial" / str(file.path).replace("/", "+")


def test_files_arrive_verified_beside_their_checksums(archive, days, tmp_path: Path, waits) -> None:
    report = fetch(days, tmp_path, waits)
    assert statuses(report) == ["fetched", "fetched"]
    assert {outcome.reason for outcome in report.outcomes} == {"SHA-256 as published"}
    for file in days:
        assert (tmp_path / file.path).read_bytes() == archive.files[path_of(file)]
        digest = hashlib.sha256(archive.files[path_of(file)]).hexdigest()
        assert (tmp_path / f"{file.path}.CHECKSUM").read_text() == f"{digest}  {file.path.name}\n"
    names = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert names == {name for file in days for name in (file.path.name, f"{file.path.name}.CHECKSUM")}
    assert report.size == sum(len(archive.files[path_of(file)]) for file in days)
    assert not (tmp_path / ".partial").exists()
    assert waits == []


def test_a_file_that_is_there_and_right_is_not_fetched_again(archive, days, tmp_path: Path, waits) -> None:
    fetch(days, tmp_path, waits)
    (tmp_path / days[1].path).write_bytes(b"something else")
    archive.requests.clear()
    assert statuses(fetch(days, tmp_path, waits)) == ["present", "fetched"]
    assert archive.ranges(path_of(days[0])) == []
    assert (tmp_path / days[1].path).read_bytes() == archive.files[path_of(days[1])]


def test_a_missing_month_is_reported_and_the_others_arrive(archive, days, tmp_path: Path, waits) -> None:
    month = BinanceSeries("BTCUSDT").files(archive.url, date(2019, 12, 1), date(2020, 1, 1))
    report = fetch([*month, *days], tmp_path, waits)
    assert statuses(report) == ["missing", "fetched", "fetched"]
    assert report.outcomes[0].reason == "the archive has no such file (404)"
    assert report.counts[FetchStatus.MISSING] == 1
    assert "data/spot/monthly" not in below(tmp_path)
    assert waits == []


def test_a_wrong_checksum_is_refused_and_nothing_is_left(archive, days, tmp_path: Path, waits) -> None:
    name = days[0].path.name
    archive.files[f"{path_of(days[0])}.CHECKSUM"] = f"{'0' * 64}  {name}\n".encode()
    report = fetch(days[:1], tmp_path, waits)
    assert statuses(report) == ["refused"]
    digest = hashlib.sha256(archive.files[path_of(days[0])]).hexdigest()
    assert report.outcomes[0].reason == f"its SHA-256 is {digest}, the archive's CHECKSUM says {'0' * 64}"
    assert below(tmp_path) == set()
    assert (report.size, waits) == (0, [])


def test_a_changed_byte_is_refused_and_a_good_file_beside_it_is_not(archive, days, tmp_path: Path, waits) -> None:
    payload = bytearray(archive.files[path_of(days[0])])
    payload[CUT] ^= 1
    archive.files[path_of(days[0])] = bytes(payload)
    assert statuses(fetch(days, tmp_path, waits)) == ["refused", "fetched"]
    assert not any(days[0].path.name in name for name in below(tmp_path))


@pytest.mark.parametrize("text", [b"", b"<html>", b"ab12  BTCUSDT-1m-2020-01-01.zip\n", b"0" * 64 + b"  other.zip\n"])
def test_a_checksum_file_that_says_nothing_of_the_file_is_refused(archive, days, tmp_path: Path, waits, text) -> None:
    archive.files[f"{path_of(days[0])}.CHECKSUM"] = text
    report = fetch(days[:1], tmp_path, waits)
    assert [outcome.reason for outcome in report.outcomes] == ["its CHECKSUM file holds no SHA-256 of it"]
    assert archive.ranges(path_of(days[0])) == []
    assert below(tmp_path) == set()


def test_a_file_without_checksum_is_taken_only_where_that_is_set(archive, days, tmp_path: Path, waits) -> None:
    del archive.files[f"{path_of(days[0])}.CHECKSUM"]
    refused = fetch(days[:1], tmp_path, waits)
    assert [outcome.reason for outcome in refused.outcomes] == ["the archive publishes no CHECKSUM for it"]
    assert below(tmp_path) == set()
    taken = fetch(days[:1], tmp_path, waits, checksum="if_published")
    assert [(o.status, o.reason) for o in taken.outcomes] == [("fetched", "unpacks without error")]


def test_a_damaged_zip_without_checksum_is_refused(archive, days, tmp_path: Path, waits) -> None:
    del archive.files[f"{path_of(days[0])}.CHECKSUM"]
    payload = bytearray(archive.files[path_of(days[0])])
    payload[CUT] ^= 1
    archive.files[path_of(days[0])] = bytes(payload)
    assert statuses(fetch(days[:1], tmp_path, waits, checksum="if_published")) == ["refused"]
    assert below(tmp_path) == set()


def test_a_truncated_body_is_resumed_where_it_broke(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [fault(cut=CUT), fault(cut=10_000)]
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    assert archive.ranges(path_of(days[0])) == [None, f"bytes={CUT}-", f"bytes={CUT + 10_000}-"]
    assert (tmp_path / days[0].path).read_bytes() == archive.files[path_of(days[0])]
    assert waits == [0.75, 1.5]


def test_a_truncated_checksum_is_asked_for_again(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[f"{path_of(days[0])}.CHECKSUM"] = [fault(cut=20)]
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    assert waits == [0.75]


def test_what_has_arrived_is_completed_by_the_next_run(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [fault(cut=CUT)]
    report = fetch(days[:1], tmp_path, waits, attempts=1)
    assert statuses(report) == ["failed"]
    assert "the body ended early" in report.outcomes[0].reason
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {part_of(days[0], tmp_path).name}
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    assert archive.ranges(path_of(days[0])) == [None, f"bytes={CUT}-"]
    assert (tmp_path / days[0].path).read_bytes() == archive.files[path_of(days[0])]
    assert not (tmp_path / ".partial").exists()


@pytest.mark.parametrize("kind", ["of another file", "too long", "complete"])
def test_a_part_of_any_kind_ends_in_the_right_file(archive, days, tmp_path: Path, waits, kind: str) -> None:
    payload = archive.files[path_of(days[0])]
    content = {"of another file": b"x" * CUT, "too long": payload + b"x", "complete": payload}[kind]
    part = part_of(days[0], tmp_path)
    part.parent.mkdir()
    part.write_bytes(content)
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    assert (tmp_path / days[0].path).read_bytes() == payload
    again = {"of another file": [None], "too long": [None], "complete": []}[kind]
    assert archive.ranges(path_of(days[0])) == [f"bytes={len(content)}-", *again]


def test_a_server_without_ranges_starts_over(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [fault(cut=CUT), fault(whole=True)]
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    assert (tmp_path / days[0].path).read_bytes() == archive.files[path_of(days[0])]


def test_429_waits_as_long_as_it_asks(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [
        fault(status=429, headers={"Retry-After": "7"}),
        fault(status=429),
        fault(status=429, headers={"Retry-After": "Wed, 01 Jan 2020 00:00:00 GMT"}),
    ]
    assert statuses(fetch(days[:1], tmp_path, waits)) == ["fetched"]
    # The asked-for seconds and a jitter; then the second step of the back-off; then a date that is over.
    assert waits == [7.5, 1.5, 0.5]


def test_429_that_asks_for_too_long_fails_the_file(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [fault(status=429, headers={"Retry-After": "3600"})]
    report = fetch(days, tmp_path, waits)
    assert statuses(report) == ["failed", "fetched"]
    assert "429 and asks for 3600 s, fetch.max_wait_seconds is 120" in report.outcomes[0].reason
    assert waits == []


def test_5xx_backs_off_exponentially_up_to_the_limit_and_then_gives_up(
    archive, fault, days, tmp_path: Path, waits
) -> None:
    archive.faults[path_of(days[0])] = [fault(status=500 + number) for number in range(6)]
    report = fetch(days[:1], tmp_path, waits, max_wait_seconds=5)
    assert [outcome.reason for outcome in report.outcomes] == ["the archive answered 505; gave up after 6 attempts"]
    assert waits == [0.75, 1.5, 3.0, 3.75, 3.75]
    assert below(tmp_path) == set()


def test_a_silent_server_is_asked_again(archive, fault, days, tmp_path: Path, waits) -> None:
    archive.faults[path_of(days[0])] = [fault(stall=CUT)]
    assert statuses(fetch(days[:1], tmp_path, waits, timeout_seconds=0.2)) == ["fetched"]
    assert archive.ranges(path_of(days[0])) == [None, f"bytes={CUT}-"]
    assert waits == [0.75]


@pytest.mark.parametrize("status", [400, 403, 410])
def test_other_answers_are_final(archive, fault, days, tmp_path: Path, waits, status: int) -> None:
    archive.faults[path_of(days[0])] = [fault(status=status, body=b"no\nsuch symbol")]
    report = fetch(days[:1], tmp_path, waits)
    assert [outcome.reason for outcome in report.outcomes] == [f"the archive answered {status}: no such symbol"]
    assert (len(archive.ranges(path_of(days[0]))), waits) == (1, [])


def test_no_more_connections_are_open_than_set(server, tmp_path: Path, waits) -> None:
    files = [RemoteFile(f"{server.url}/{n}.gz", Path(f"{n}.gz"), str(n)) for n in range(8)]
    # Each request is held until another one is there, so that one at a time would not do either.
    server.pairing = threading.Barrier(2)
    assert statuses(fetch(files, tmp_path, waits, connections=2)) == ["missing"] * 8
    assert server.most_active == 2


def test_an_archive_that_cannot_be_reached_ends_the_run(tmp_path: Path, waits) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    files = BinanceSeries("BTCUSDT").files(f"http://127.0.0.1:{port}", date(2020, 1, 1), date(2021, 1, 1))
    with pytest.raises(FetchError, match=rf"cannot reach 127\.0\.0\.1:{port}: .*refused"):
        fetch(files, tmp_path, waits)
    assert (below(tmp_path), waits) == (set(), [])


def test_two_runs_do_not_write_into_one_folder(archive, days, tmp_path: Path, waits) -> None:
    (tmp_path / ".partial").mkdir()
    with FileLock(tmp_path / ".partial" / "lock"), pytest.raises(FetchError, match="another run is fetching into"):
        fetch(days, tmp_path, waits)
    assert archive.requests == []


def test_a_folder_that_cannot_be_made_is_named(archive, days, tmp_path: Path, waits) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"cannot write .*file.*: Not a directory"):
        fetch(days, tmp_path / "file", waits)


def test_progress_counts_files_and_megabytes(archive, days, tmp_path: Path) -> None:
    seen: list[tuple[int, Mapping[str, float] | None]] = []

    class Seen(NoProgress):
        def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
            seen.append((completed, metrics))

    fetch_files(days, tmp_path, FetchSettings(), progress=Seen())
    size = sum(len(archive.files[path_of(file)]) for file in days)
    assert seen[-1] == (2, {"MB": pytest.approx(size / 1e6)})


def test_an_interruption_ends_every_thread_and_keeps_what_has_arrived(
    archive, fault, days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in days:
        archive.faults[path_of(file)] = [fault(stall=CUT)]
    parts = [part_of(file, tmp_path) for file in days]

    class Impatient(NoProgress):
        def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
            if all(part.exists() and part.stat().st_size for part in parts):
                raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_TICK_SECONDS", 0.01)
    before = threading.active_count()
    run = functools.partial(fetch_files, days, tmp_path, FetchSettings())
    with pytest.raises(KeyboardInterrupt):
        run(progress=Impatient())
    # The server's two threads are still stalled.
    assert threading.active_count() <= before + 2
    kept = [part.stat().st_size for part in parts]
    archive.requests.clear()
    assert statuses(run()) == ["fetched", "fetched"]
    assert [archive.ranges(path_of(file)) for file in days] == [[f"bytes={size}-"] for size in kept]
