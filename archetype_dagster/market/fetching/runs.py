"""Many files of an archive: a bounded number at a time, each published whole and verified or not at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Final

from filelock import FileLock, Timeout

from archetype_dagster.artifacts import write_bytes_atomically
from archetype_dagster.errors import FetchError
from archetype_dagster.market.fetching.client import ArchiveClient, FileMissing, writing
from archetype_dagster.market.fetching.keys import ArchiveKey
from archetype_dagster.market.fetching.layouts import RemoteFile
from archetype_dagster.market.fetching.retries import FileFailed, Retries
from archetype_dagster.market.fetching.verification import file_fault, parse_checksum
from archetype_dagster.settings import FetchSettings
from archetype_dagster.types import NoProgress, Progress

PARTIAL_FOLDER: Final = ".partial"
_TICK_SECONDS: Final = 0.5


class FetchStatus(StrEnum):
    """What became of a file."""

    FETCHED = "fetched"
    PRESENT = "present"
    MISSING = "missing"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class FileOutcome:
    """One file after a run.

    Attributes:
        file: which.
        status: `fetched` now, `present` and right before, `missing` in the archive (404), `refused` because what
            arrived is not what the archive publishes, or `failed` for another fault.
        size: bytes of the file in the output folder; 0 where it is not there.
        reason: what went wrong, or how a fetched file was verified.
    """

    file: RemoteFile
    status: FetchStatus
    size: int = 0
    reason: str = ""


@dataclass(frozen=True)
class FetchReport:
    """The outcomes of a run, in the order the files were asked for."""

    outcomes: tuple[FileOutcome, ...]

    @property
    def counts(self) -> dict[FetchStatus, int]:
        """Files by status; every status is there."""
        found = Counter(outcome.status for outcome in self.outcomes)
        return {status: found[status] for status in FetchStatus}

    @property
    def size(self) -> int:
        """Bytes of the files in the output folder."""
        return sum(outcome.size for outcome in self.outcomes)


def fetch_files(
    files: Sequence[RemoteFile],
    output: Path,
    settings: FetchSettings,
    *,
    key: ArchiveKey | None = None,
    progress: Progress | None = None,
    sleep: Callable[[float], object] | None = None,
    jitter: Callable[[], float] = random.random,
) -> FetchReport:
    """Fetch the files into `output` and say what became of each.

    A file appears under its name only when it is whole and verified: against the archive's SHA-256 where one is
    published, else by unpacking it. What has arrived of a file when a run is interrupted stays in `.partial` and is
    completed by the next one; what turned out wrong is deleted.

    Args:
        files: what to fetch.
        output: folder of the archive's copy; made where it is missing.
        settings: connections, attempts, waits.
        key: the archive's key; None for an archive without one.
        progress: told of files done and megabytes received.
        sleep: waits that many seconds between attempts; the real clock by default.
        jitter: a fraction in [0, 1) that spreads the waits.

    Raises:
        FetchError: the archive cannot be reached, a file cannot be written, or another run fetches into `output`.
        SettingsError: the key cannot be sent.
    """
    partial = output / PARTIAL_FOLDER
    with writing(partial):
        partial.mkdir(parents=True, exist_ok=True)
    lock = FileLock(partial / "lock", timeout=0)
    try:
        with lock:
            run = _Run(output, settings, key or ArchiveKey(), sleep, jitter)
            try:
                return run.fetch(files, progress or NoProgress())
            finally:
                run.client.close()
                (partial / "lock").unlink()
                # Parts that a later run completes keep the folder.
                with suppress(OSError):
                    partial.rmdir()
    except Timeout:
        raise FetchError(f"another run is fetching into {output}") from None


class _Run:
    def __init__(
        self,
        output: Path,
        settings: FetchSettings,
        key: ArchiveKey,
        sleep: Callable[[float], object] | None,
        jitter: Callable[[], float],
    ) -> None:
        self._output = output
        self._settings = settings
        self._lock = Lock()
        self._bytes = 0
        self.client = ArchiveClient(settings, key, Retries(settings, sleep, jitter), self._count_bytes)

    def fetch(self, files: Sequence[RemoteFile], progress: Progress) -> FetchReport:
        progress.start("files", len(files))
        with ThreadPoolExecutor(self._settings.connections) as pool:
            try:
                futures = [pool.submit(self._fetch_one, file) for file in files]
                waiting: set[Future[FileOutcome]] = set(futures)
                while waiting:
                    done, waiting = wait(waiting, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    progress.advance(len(files) - len(waiting), {"MB": self._bytes / 1e6})
            finally:
                # After an error or an interruption nothing is left running or waiting.
                self.client.interrupt()
                pool.shutdown(cancel_futures=True)
        progress.finish()
        return FetchReport(tuple(future.result() for future in futures))

    def _fetch_one(self, file: RemoteFile) -> FileOutcome:
        try:
            return self._publish(file, self._digest(file))
        except FileMissing:
            return FileOutcome(file, FetchStatus.MISSING, reason="the archive has no such file (404)")
        except _Refused as refusal:
            return FileOutcome(file, FetchStatus.REFUSED, reason=str(refusal))
        except FileFailed as fault:
            return FileOutcome(file, FetchStatus.FAILED, reason=str(fault))

    def _digest(self, file: RemoteFile) -> str | None:
        if file.checksum_url is None:
            return None
        try:
            text = self.client.read_text(file.checksum_url)
        except FileMissing:
            if self._settings.checksum == "if_published":
                return None
            self.client.check_exists(file.url)
            raise _Refused("the archive publishes no CHECKSUM for it") from None
        digest = parse_checksum(text, file.path.name)
        if digest is None:
            raise _Refused("its CHECKSUM file holds no SHA-256 of it")
        return digest

    def _publish(self, file: RemoteFile, digest: str | None) -> FileOutcome:
        target = self._output / file.path
        # Without a published digest a file that is there was verified when it was put there.
        if target.is_file() and (digest is None or file_fault(target, target.name, digest) is None):
            return FileOutcome(file, FetchStatus.PRESENT, target.stat().st_size)
        part = self._output / PARTIAL_FOLDER / str(file.path).replace("/", "+")
        resumed = part.exists()
        self.client.download(file.url, part)
        fault = file_fault(part, target.name, digest)
        if fault and resumed:
            # The part may be of a file that the archive has replaced since.
            part.unlink()
            self.client.download(file.url, part)
            fault = file_fault(part, target.name, digest)
        if fault:
            part.unlink()
            raise _Refused(fault)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if digest is not None:
                line = f"{digest}  {target.name}\n"
                write_bytes_atomically(target.with_name(f"{target.name}.CHECKSUM"), line.encode())
            part.replace(target)
        size = target.stat().st_size
        verified = "SHA-256 as published" if digest else "unpacks without error" if size else "empty: no data that day"
        return FileOutcome(file, FetchStatus.FETCHED, size, verified)

    def _count_bytes(self, number: int) -> None:
        with self._lock:
            self._bytes += number


class _Refused(Exception):
    pass
