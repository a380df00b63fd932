"""Runs in an MLflow store: found again by identity, curves sent in batches. The only importer of MLflow."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from filelock import FileLock

from archetype_dagster.types import JsonDict

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus

IDENTITY_TAG: Final = "archetype.materialisation"
_BATCH_METRICS: Final = 900
_BATCH_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000


@dataclass
class MlflowTracker:
    """The `Tracker` of one open MLflow run; as a context it ends finished, failed or, interrupted, killed."""

    client: MlflowClient
    run_id: str
    pending: list[Metric] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ending = RunStatus.KILLED
        if kind is None:
            ending = RunStatus.FINISHED
        elif issubclass(kind, Exception):
            ending = RunStatus.FAILED
        self.flush()
        self.client.set_terminated(self.run_id, RunStatus.to_string(ending))

    def log_params(self, params: JsonDict) -> None:
        """Record settings; a value MLflow finds too long is cut."""
        rows = [Param(name, str(value)[:_LONGEST_PARAM]) for name, value in sorted(params.items())]
        for first in range(0, len(rows), _BATCH_PARAMS):
            self.client.log_batch(self.run_id, params=rows[first : first + _BATCH_PARAMS])

    def log_curve_point(self, step: int, values: Mapping[str, float]) -> None:
        """Buffer one point of each curve; a full buffer is sent."""
        now = time.time_ns() // 1_000_000
        self.pending.extend(Metric(name, float(value), now, step) for name, value in values.items())
        if len(self.pending) >= _BATCH_METRICS:
            self.flush()

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record closing metrics."""
        self.log_curve_point(0, metrics)

    def log_artifacts(self, directory: Path) -> None:
        """Copy every file of a folder into the run."""
        self.client.log_artifacts(self.run_id, str(directory))

    def flush(self) -> None:
        """Send what is buffered."""
        while self.pending:
            batch, self.pending = self.pending[:_BATCH_METRICS], self.pending[_BATCH_METRICS:]
            self.client.log_batch(self.run_id, metrics=batch)


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

    def run(self, *, identity: str, name: str, tags: Mapping[str, str]) -> MlflowTracker:
        """Open or reopen the run of `identity`, as a context that ends it."""
        quoted = identity.replace("'", "")
        found = self.client.search_runs([self.experiment_id], f"tags.`{IDENTITY_TAG}` = '{quoted}'", max_results=1)
        if found:
            run_id = found[0].info.run_id
            self.client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            every_tag = {**tags, IDENTITY_TAG: quoted}
            run_id = self.client.create_run(self.experiment_id, run_name=name, tags=every_tag).info.run_id
        return MlflowTracker(self.client, run_id)
