"""Tracking as a resource, in MLflow and TensorBoard; switched off it costs nothing, not even the import."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol

import dagster as dg
from pydantic import Field

from archetype_dagster.types import JsonDict, Progress

TRACKING_VARIABLE: Final = "ARCHETYPE_TRACKING_URI"
OFF: Final = "off"


class Tracker(Protocol):
    """Where one materialisation reports parameters, curves, metrics and files.

    Attributes:
        address: where a person finds what was recorded; None where nothing is.
        missing: what of it could not be recorded, in words; empty where all was.
    """

    @property
    def address(self) -> str | None:
        """See the class."""

    @property
    def missing(self) -> str:
        """See the class."""

    def log_params(self, params: JsonDict) -> None:
        """Record settings by dotted name."""

    def log_curve_point(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each named curve; sent in batches."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record closing metrics."""

    def log_artifacts(self, directory: Path) -> None:
        """Record every file of a folder."""


class NoTracker:
    """A `Tracker` that records nothing."""

    address: str | None = None
    missing: str = ""

    def log_params(self, params: JsonDict) -> None:
        """Ignore the parameters."""

    def log_curve_point(self, step: int, values: Mapping[str, float]) -> None:
        """Ignore the point."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Ignore the metrics."""

    def log_artifacts(self, directory: Path) -> None:
        """Ignore the files."""


class TrackingResource(dg.ConfigurableResource["TrackingResource"]):
    """Records materialisations in MLflow: a local SQLite store by default, a server by URI."""

    enabled: bool = Field(
        default=True, description=f"False, or {TRACKING_VARIABLE}={OFF} in the environment, makes tracking a no-op."
    )
    tracking_uri: str | None = Field(
        default=None,
        description=f"MLflow server or store; empty takes {TRACKING_VARIABLE} of the environment, or else keeps "
        "mlruns/mlflow.db beside the result folder. A password belongs in MLFLOW_TRACKING_PASSWORD.",
    )
    experiment: str = Field(default="archetype", description="MLflow experiment.")
    tensorboard: bool = Field(
        default=True, description="Write the curves of trained stages as TensorBoard files too, unless not enabled."
    )

    def run(
        self, *, identity: str, name: str, tags: Mapping[str, str], result_root: Path, parent: str | None = None
    ) -> AbstractContextManager[Tracker]:
        """One MLflow run; a second call with the same `identity` (a retry) goes on with the same run.

        A store that does not answer stops nobody: what is recorded waits in memory until it does, and what
        still waits at the end is named by the tracker as missing.

        Args:
            identity: what makes two attempts the same materialisation.
            name: name shown for the run.
            tags: further tags.
            result_root: result folder, beside which the default store lies.
            parent: identity of the run that this one is a part of, and is shown inside.
        """
        if not self._wanted:
            return nullcontext(NoTracker())
        from resources.mlflow_runs import MlflowStore, MlflowTracker

        def connect() -> MlflowStore:
            address = self.tracking_uri or os.environ.get(TRACKING_VARIABLE) or None
            return MlflowStore.connect(address, self.experiment, default_folder=result_root.parent / "mlruns")

        return MlflowTracker(connect, identity=identity, name=name, tags=tags, parent=parent)

    def with_curves(self, progress: Progress, directory: Path) -> Progress:
        """`progress`, which where TensorBoard is wanted also writes its metrics as curves to `directory`."""
        if not (self._wanted and self.tensorboard):
            return progress
        from archetype_dagster.policy_training.tensorboard import TensorboardProgress

        return TensorboardProgress(progress, directory)

    @property
    def _wanted(self) -> bool:
        return self.enabled and os.environ.get(TRACKING_VARIABLE) != OFF
