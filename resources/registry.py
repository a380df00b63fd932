"""Bundles as registered models of MLflow: versions found again by their hash, and the alias `champion`.

Imported where it is needed only, because MLflow takes seconds to load.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from archetype_dagster.deployment.bundle import read_bundle
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.market.bars import BARS_SCHEMA, MIN_BOOK_LEVELS, book_columns
from resources.failure import may_pass
from resources.mlflow_runs import MlflowStore

# The upload's own bars would break into the run's log.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import mlflow.artifacts
import mlflow.pyfunc
from mlflow.entities import RunStatus
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

CHAMPION: Final = "champion"
HASH_TAG: Final = "archetype.bundle"
_LOADER: Final = "resources.bundle_model"
_REQUIREMENTS: Final = ("archetype-dagster", "numpy", "onnxruntime", "polars")
_ABSENT: Final = {ErrorCode.Name(code) for code in (RESOURCE_DOES_NOT_EXIST, INVALID_PARAMETER_VALUE)}


class RegistryError(ArchetypeError):
    """The model registry does not answer, or does not hold what it should."""


class RegistryAwayError(RegistryError):
    """The model registry does not answer; it may do so later."""


@dataclass(frozen=True)
class RegisteredBundle:
    """One version of a registered model.

    Attributes:
        name: of the model, one a pair.
        version: number in the registry.
        bundle: hash of the bundle.
        source: where MLflow keeps its files.
    """

    name: str
    version: str
    bundle: str
    source: str


@dataclass(frozen=True)
class BundleRegistry:
    """The registered models of one MLflow store.

    Attributes:
        store: the store, and the experiment that versions are logged to.
        uri: its tracking URI.
    """

    store: MlflowStore
    uri: str

    @classmethod
    def connect(cls, tracking_uri: str | None, experiment: str, *, result_root: Path) -> Self:
        """The registry of a tracking server or store; see `TrackingResource`.

        Raises:
            RegistryError: it does not answer.
        """
        with _answering():
            store = MlflowStore.connect(tracking_uri, experiment, default_folder=result_root.parent / "mlruns")
            return cls(store, store.client.tracking_uri)

    def register(self, directory: Path, pair: str, tags: Mapping[str, str]) -> RegisteredBundle:
        """The version of a bundle, logged now where it is not there yet: a model with signature and no pickle.

        Args:
            directory: the bundle.
            pair: traded pair.
            tags: further tags of a new version.

        Raises:
            ArtifactError: the bundle is damaged.
            RegistryError: the registry does not answer.
        """
        bundle, name, client = read_bundle(directory).hash, model_name(pair), self.store.client
        with _answering(), tempfile.TemporaryDirectory() as folder:
            known = client.search_model_versions(f"name = '{name}' and tags.`{HASH_TAG}` = '{bundle}'")
            if known:
                return _registered(known[0])
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name, description=f"Trading policy of {pair} as an ONNX bundle.")
            model = str(Path(folder) / "model")
            with warnings.catch_warnings():
                # The signature is written down below and needs no example to be inferred from.
                warnings.simplefilter("ignore", UserWarning)
                mlflow.pyfunc.save_model(
                    model,
                    loader_module=_LOADER,
                    data_path=str(directory),
                    signature=bundle_signature(),
                    pip_requirements=[f"{package}=={version(package)}" for package in _REQUIREMENTS],
                )
            run = client.create_run(self.store.experiment_id, run_name=f"{pair} bundle {bundle[:12]}").info.run_id
            try:
                logged = client.create_logged_model(
                    self.store.experiment_id, name=f"{name}-{bundle[:12]}", source_run_id=run
                )
                client.log_model_artifacts(logged.model_id, model)
                client.finalize_logged_model(logged.model_id, "READY")
                # With its run, because without one MLflow asks the process's default store for the model.
                made = client.create_model_version(
                    name,
                    source=logged.artifact_location,
                    run_id=run,
                    model_id=logged.model_id,
                    tags={**tags, HASH_TAG: bundle},
                )
            except BaseException:
                with suppress(MlflowException, OSError):
                    client.set_terminated(run, RunStatus.to_string(RunStatus.FAILED))
                raise
            client.set_terminated(run, RunStatus.to_string(RunStatus.FINISHED))
            return _registered(made)

    def champion(self, pair: str) -> RegisteredBundle | None:
        """The version that the alias points to; None where there is none.

        Raises:
            RegistryError: the registry does not answer.
        """
        with _answering():
            try:
                return _registered(self.store.client.get_model_version_by_alias(model_name(pair), CHAMPION))
            except MlflowException as error:
                if error.error_code not in _ABSENT:
                    raise
                return None

    def fetch(self, registered: RegisteredBundle, folder: Path) -> Path:
        """The bundle of a version, copied into a folder.

        Raises:
            ArtifactError: it is damaged, or not the one that was registered.
            RegistryError: the registry does not answer, or keeps something else than a bundle.
        """
        with _answering():
            model = mlflow.artifacts.download_artifacts(
                artifact_uri=registered.source, dst_path=str(folder), tracking_uri=self.uri
            )
            folders = [entry for entry in (Path(model) / "data").iterdir() if entry.is_dir()]
        if len(folders) != 1:
            raise RegistryError(
                f"version {registered.version} of {registered.name} holds {len(folders)} folders instead of one bundle"
            )
        read_bundle(folders[0], expected_hash=registered.bundle)
        return folders[0]

    def promote(self, registered: RegisteredBundle, *, instead_of: RegisteredBundle | None, pair: str) -> None:
        """Let the alias point to a version.

        Args:
            registered: the new champion.
            instead_of: the champion that it was compared with.
            pair: traded pair.

        Raises:
            RegistryError: another champion was made meanwhile, and the alias stays with it; or the registry does not
                answer, and the message says whether the alias may have moved.
        """
        now = self.champion(pair)
        if now != instead_of:
            raise RegistryError(
                f"the champion of {pair} is now version {now.version if now else 'none'}, compared was with "
                f"{instead_of.version if instead_of else 'none'}; compare again"
            )
        with _answering("whether the alias moved is not known; compare again, which settles it"):
            self.store.client.set_registered_model_alias(registered.name, CHAMPION, registered.version)

    def note(self, registered: RegisteredBundle, tags: Mapping[str, Any]) -> None:
        """Set tags of a version; `RegistryError` where the registry does not answer."""
        with _answering():
            for name, value in tags.items():
                self.store.client.set_model_version_tag(registered.name, registered.version, name, str(value))


def model_name(pair: str) -> str:
    """Name of the registered model of a pair."""
    return f"archetype-{pair}"


def bundle_signature() -> ModelSignature:
    """Bars in, decisions out, by column; see `bundle_model.BundleModel.predict`."""
    candles = [name for name, dtype in BARS_SCHEMA.items() if name in ("open", "high", "low", "close", "volume")]
    levels = book_columns(MIN_BOOK_LEVELS)
    first = set(levels[:4])
    inputs: list[ColSpec | TensorSpec] = [
        ColSpec(DataType.datetime, "timestamp"),
        *(ColSpec(DataType.double, name) for name in candles),
    ]
    inputs += [ColSpec(DataType.double, name, required=name in first) for name in levels]
    outputs = {
        "action": DataType.string,
        "code": DataType.long,
        "tau": DataType.long,
        "overridden": DataType.boolean,
    }
    columns: list[ColSpec | TensorSpec] = [ColSpec(dtype, name) for name, dtype in outputs.items()]
    return ModelSignature(Schema(inputs), Schema(columns))


@contextmanager
def _answering(outcome: str = "this call moves no alias") -> Iterator[None]:
    """Errors of the registry in one line, with what they mean for the alias."""
    try:
        yield
    except (MlflowException, OSError) as error:
        code = getattr(error, "error_code", None)
        # A message may hold the address and with it a password, unless the registry itself wrote it.
        told = str(error) if code in _ABSENT else f"{type(error).__name__}{f' {code}' if code else ''}"
        local = isinstance(error, OSError) and error.errno is not None and not may_pass(error)
        kind = RegistryError if local or code in _ABSENT else RegistryAwayError
        raise kind(f"the MLflow model registry cannot be used ({told}); {outcome}") from error


def _registered(found: Any) -> RegisteredBundle:
    if HASH_TAG not in found.tags:
        raise RegistryError(f"version {found.version} of {found.name} was not registered as a bundle")
    return RegisteredBundle(found.name, str(found.version), found.tags[HASH_TAG], found.source)
