"""Runs in an MLflow store: found again by identity, curves sent in batches. Only `registry` imports MLflow besides."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from filelock import FileLock

from archetype_dagster.types import JsonDict

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Its own many tries would hold a training up for minutes; what is not taken is sent again later.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

IDENTITY_TAG: Final = "archetype.materialisation"
_BATCH_METRICS: Final = 900
_BATCH_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000
_QUIET_SECONDS: Final = 30.0


@dataclass
class MlflowTracker:
    """The `Tracker` of one MLflow run; as a context it ends finished, failed or, interrupted, killed.

    What a store does not take waits here, and is sent once it answers again.

    Attributes:
        connect: opens the store.
        identity: what makes two attempts the same materialisation.
        name: name shown for the run.
        tags: further tags.
        parent: identity of the run that this one is a part of.
        missing: what could not be recorded, known when the context ends.
    """

    connect: "Callable[[], MlflowStore]"
    identity: str
    name: str
    tags: Mapping[str, str]
    parent: str | None = None
    missing: str = ""
    _open: "OpenRun | None" = None
    _params: list[Param] = field(default_factory=list)
    _metrics: list[Metric] = field(default_factory=list)
    _folders: list[Path] = field(default_factory=list)
    _fault: str = ""
    _quiet_until: float = 0.0

    @property
    def address(self) -> str | None:
        """Page of the run on a server, else its id and the store's kind; None while no store answered."""
        return None if self._open is None else self._open.address

    def __enter__(self) -> Self:
        self.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ending = RunStatus.KILLED
        if kind is None:
            ending = RunStatus.FINISHED
        elif issubclass(kind, Exception):
            ending = RunStatus.FAILED
        # Who interrupts a run does not wait for a store that is away.
        if not (ending == RunStatus.KILLED and self._fault):
            self._quiet_until = 0.0
            self.flush()
        ended = not self._fault and self._attempt(lambda run: run.end(ending))
        self.missing = self._what_is_missing(ended)

    def log_params(self, params: JsonDict) -> None:
        """Record settings; a value MLflow finds too long is cut."""
        self._params += [Param(name, str(value)[:_LONGEST_PARAM]) for name, value in sorted(params.items())]
        self.flush()

    def log_curve_point(self, step: int, values: Mapping[str, float]) -> None:
        """Buffer one point of each curve; a full buffer is sent."""
        now = time.time_ns() // 1_000_000
        self._metrics.extend(Metric(name, float(value), now, step) for name, value in values.items())
        if len(self._metrics) >= _BATCH_METRICS:
            self.flush()

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record closing metrics."""
        self.log_curve_point(0, metrics)

    def log_artifacts(self, directory: Path) -> None:
        """Copy every file of a folder into the run."""
        self._folders.append(directory)
        self.flush()

    def flush(self) -> None:
        """Send what waits, unless the store failed a moment ago."""
        if time.monotonic() < self._quiet_until:
            return
        while self._params and self._attempt(lambda run: run.send(params=self._params[:_BATCH_PARAMS])):
            del self._params[:_BATCH_PARAMS]
        while self._metrics and self._attempt(lambda run: run.send(metrics=self._metrics[:_BATCH_METRICS])):
            del self._metrics[:_BATCH_METRICS]
        while self._folders and self._attempt(lambda run: run.send(folder=self._folders[0])):
            del self._folders[0]
        if self._open is None:
            self._attempt(lambda run: None)

    def _attempt(self, action: "Callable[[OpenRun], None]") -> bool:
        if time.monotonic() < self._quiet_until:
            return False
        try:
            if self._open is None:
                self._open = self.connect().open_run(
                    identity=self.identity, name=self.name, tags=self.tags, parent=self.parent
                )
            action(self._open)
        except (MlflowException, OSError) as error:
            code = getattr(error, "error_code", None)
            if str(code).startswith("INVALID_"):
                raise
            # No message: it may hold the address, and that a password.
            self._fault = type(error).__name__ if code is None else f"{type(error).__name__} {code}"
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            return False
        self._fault = ""
        return True

    def _what_is_missing(self, ended: bool) -> str:
        waiting = {
            "settings": len(self._params),
            "points of curves": len(self._metrics),
            "folders of files": len(self._folders),
            "the run's end": int(not ended),
        }
        named = ", ".join(f"{count} {what}" for what, count in waiting.items() if count)
        return f"not recorded in MLflow, which did not answer ({self._fault}): {named}" if named else ""


@dataclass(frozen=True)
class OpenRun:
    """A run that the store has accepted.

    Attributes:
        client: of the store.
        experiment_id: its experiment.
        run_id: its id.
    """

    client: MlflowClient
    experiment_id: str
    run_id: str

    @property
    def address(self) -> str:
        """Page of the run on a server, without credentials, else its id and the kind of store."""
        parts = urlsplit(self.client.tracking_uri)
        if parts.scheme not in ("http", "https"):
            return f"run {self.run_id} in the {parts.scheme} store"
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")
        return f"{place}/#/experiments/{self.experiment_id}/runs/{self.run_id}"

    def send(self, *, params: Sequence[Param] = (), metrics: Sequence[Metric] = (), folder: Path | None = None) -> None:
        """Record one batch."""
        if params or metrics:
            self.client.log_batch(self.run_id, params=params, metrics=metrics)
        if folder is not None:
            self.client.log_artifacts(self.run_id, str(folder))

    def end(self, status: int) -> None:
        """Close the run."""
        self.client.set_terminated(self.run_id, RunStatus.to_string(status))


@dataclass(frozen=True)
class MlflowStore:
    """One experiment of an MLflow store."""

    client: MlflowClient
    experiment_id: str

    @classmethod
    def connect(cls, tracking_uri: str | None, experiment: str, *, default_folder: Path) -> Self:
        """Connect to `tracking_uri`, or to a SQLite store in `default_folder`, made on first use."""
        if tracking_uri is not None:
            return cls._open(tracking_uri, experiment, artifact_location=None)
        default_folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{default_folder / 'mlflow.db'}"
        # Two processes that migrate a new database at once break it.
        with FileLock(default_folder / ".mlflow.lock"):
            return cls._open(uri, experiment, artifact_location=(default_folder / "artifacts").as_uri())

    @classmethod
    def _open(cls, uri: str, experiment: str, *, artifact_location: str | None) -> Self:
        # Its account of each table it creates is noise between the stages' lines.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(experiment)
        identifier = (
            client.create_experiment(experiment, artifact_location=artifact_location)
            if known is None
            else known.experiment_id
        )
        return cls(client, identifier)

    def open_run(self, *, identity: str, name: str, tags: Mapping[str, str], parent: str | None = None) -> OpenRun:
        """Open or reopen the run of `identity`, inside that of `parent` where there is one."""
        run_id = self._run_id(identity)
        if run_id is not None:
            self.client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            outer = None if parent is None else self._run_id(parent)
            every_tag = {**tags, IDENTITY_TAG: _quotable(identity)} | (
                {} if outer is None else {MLFLOW_PARENT_RUN_ID: outer}
            )
            run_id = self.client.create_run(self.experiment_id, run_name=name, tags=every_tag).info.run_id
        return OpenRun(self.client, self.experiment_id, run_id)

    def _run_id(self, identity: str) -> str | None:
        wanted = f"tags.`{IDENTITY_TAG}` = '{_quotable(identity)}'"
        found = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        return str(found[0].info.run_id) if found else None


def _quotable(identity: str) -> str:
    return identity.replace("'", "")
