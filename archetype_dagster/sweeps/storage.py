"""Where the trials of a study are kept (memory, journal file, SQLite, database server) and who may write there."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

import optuna
from filelock import FileLock, Timeout
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial

from archetype_dagster.errors import SweepError

HEARTBEAT_SECONDS: Final = 15
_STALE_SECONDS: Final = 4 * HEARTBEAT_SECONDS
_LOCK_POLL_SECONDS: Final = 0.002
_SERVERS: Final = ("postgresql", "mysql", "mariadb")

Lost = Callable[[optuna.Study, FrozenTrial], None]


class KernelLock(BaseJournalFileLock):
    """A lock of a journal that the kernel gives back when its holder dies.

    Optuna's own locks are files: one left by a killed process stops all others until it is 30 s old.
    """

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire(poll_interval=_LOCK_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()


@dataclass(frozen=True)
class StudyStorage:
    """Where a study lives, as plain values that a worker process can be told.

    Attributes:
        kind: `memory`, `journal`, `sqlite` or `server`.
        place: path of the journal, or URL of the database.
    """

    kind: str
    place: str

    @classmethod
    def of(cls, storage: str | Path | None, *, n_jobs: int) -> Self:
        """What a user's `storage` means.

        Args:
            storage: None for memory; the path of a journal file; `sqlite:///FILE`; or the URL of a PostgreSQL or
                MySQL database.
            n_jobs: processes that will write to it.

        Raises:
            ValueError: a storage of another kind, or one that `n_jobs` processes cannot share.
        """
        if storage is None:
            return cls("memory", "")
        scheme, separator, _ = str(storage).partition("://")
        if not separator:
            return cls("journal", str(Path(storage).resolve()))
        engine = scheme.partition("+")[0]
        if engine in _SERVERS:
            return cls("server", str(storage))
        if engine != "sqlite":
            raise ValueError(f"storage must be a path or a URL of sqlite, {', '.join(_SERVERS)}, got {scheme}://")
        if n_jobs > 1:
            raise ValueError(
                f"sqlite serves one process, got n_jobs={n_jobs}: name a journal file (storage='study.journal') "
                "or a database server"
            )
        return cls("sqlite", str(storage))

    def open(self, *, made: bool = False) -> BaseStorage:
        """The storage for this process.

        Args:
            made: its tables are there and of this version; otherwise they are looked at, and made where missing.

        Raises:
            SweepError: the database's driver is not installed.
        """
        if self.kind == "memory":
            return optuna.storages.InMemoryStorage()
        if self.kind == "journal":
            path = Path(self.place)
            path.parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(
                JournalFileBackend(str(path), lock_obj=KernelLock(path.with_name(f".{path.name}.lock")))
            )
        try:
            return get_storage(RDBStorage(self.place, skip_table_creation=made, skip_compatibility_check=made))
        except ImportError as error:
            raise SweepError(
                f"no driver for {self.place.partition('://')[0]}; pip install 'archetype-dagster[postgres]' "
                f"brings that of PostgreSQL: {error}"
            ) from error

    def exclusive(self, study_name: str) -> AbstractContextManager[object]:
        """Hold the study for one sweep; what then still runs in it was left by one that died.

        A server tells the living from the dead by their heartbeats instead, so that several machines may sweep.

        Raises:
            SweepError: another process is sweeping the study.
        """
        if self.kind == "memory" or self.kind == "server" or self.place.endswith(":memory:"):
            return nullcontext()
        return self._held(study_name)

    @contextmanager
    def _held(self, study_name: str) -> Iterator[None]:
        path = Path(self.place.partition(":///")[2] or self.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(study_name.encode()).hexdigest()[:12]
        try:
            with FileLock(path.with_name(f".{path.name}.{name}.sweep"), timeout=0):
                yield
        except Timeout as error:
            raise SweepError(f"study {study_name!r} in {path} is being swept by another process") from error

    @contextmanager
    def beating(self, storage: BaseStorage, trial_id: int) -> Iterator[None]:
        """Say every `HEARTBEAT_SECONDS` that the trial is alive, where other machines would want to know."""
        if self.kind != "server":
            yield
            return
        over = Event()
        thread = Thread(target=_beat, args=(storage, trial_id, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def fail_silent_trials(self, study_name: str, lost: Lost) -> None:
        """On a server, fail every trial that has not been heard of for four heartbeats; `lost` is told each."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = RDBStorage(
                self.place,
                skip_table_creation=True,
                skip_compatibility_check=True,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=_STALE_SECONDS,
                heartbeat_stale_trial_callback=lost,
            )
            try:
                optuna.storages.fail_stale_trials(optuna.load_study(study_name=study_name, storage=storage))
            finally:
                storage.remove_session()
                storage.engine.dispose()


def _beat(storage: BaseStorage, trial_id: int, over: Event) -> None:
    while True:
        storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]
        if over.wait(HEARTBEAT_SECONDS):
            return
