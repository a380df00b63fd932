"""Artifacts on disk: published whole or not at all, described by a manifest, verified when read.

An artifact is a folder of plain files (Parquet, safetensors, JSON, ONNX, HTML) and `manifest.json`,
which names the files' hashes, the settings and the parents they were made from.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

SCHEMA_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
SUPERSEDED_FOLDER: Final = ".superseded"
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What an artifact is and what it was made from.

    Attributes:
        kind: name of the stage that made it, e.g. `vq_codebook`.
        pair: traded pair, or None for artifacts over all pairs.
        key: hash of everything that determines the content (see `stage_key`).
        settings: the settings sections the stage read, as JSON.
        parents: content hash of each parent artifact by kind.
        seed: seed of the run.
        code_version: version of the stage's algorithm.
        data_fingerprint: hash of the market data at the root of the lineage.
        facts: values a reader needs besides the files, e.g. `hindsight`.
        files: SHA-256 of each file by name; filled in on publication.
        git_revision: revision of the source tree, where there is one.
        schema_version: layout version of this manifest.
    """

    kind: str
    pair: str | None
    key: str
    settings: JsonDict
    parents: dict[str, str]
    seed: int
    code_version: str
    data_fingerprint: str
    facts: JsonDict = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    git_revision: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def part(self) -> str | None:
        """The month, `YYYY-MM`, or window of an artifact that is one of several of a pair."""
        return self.facts.get("part")

    @property
    def settings_hash(self) -> str:
        """SHA-256 of the settings the stage read."""
        return json_hash(self.settings)

    @property
    def content_hash(self) -> str:
        """SHA-256 over kind and file hashes: equal content, equal hash, whatever the settings were."""
        return json_hash({"kind": self.kind, "files": self.files})


@dataclass(frozen=True)
class Artifact:
    """A published and verified folder."""

    directory: Path
    manifest: Manifest

    @property
    def content_hash(self) -> str:
        """See `Manifest.content_hash`."""
        return self.manifest.content_hash

    def path(self, name: str) -> Path:
        """Path of one of the artifact's files; `ArtifactError` when the manifest does not list it."""
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.directory} holds no {name}; its manifest lists {sorted(self.manifest.files)}")
        return self.directory / name


def json_hash(value: Any) -> str:
    """SHA-256 of canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def stage_key(
    kind: str, *, pair: str | None, settings: JsonDict, parents: Mapping[str, str], seed: int, code_version: str
) -> str:
    """Hash of everything that determines a stage's output; equal key, nothing to recompute."""
    return json_hash(
        {
            "kind": kind,
            "pair": pair,
            "settings": settings,
            "parents": dict(parents),
            "seed": seed,
            "code_version": code_version,
            "schema_version": SCHEMA_VERSION,
        }
    )


@cache
def git_revision() -> str | None:
    """Revision of the source tree this package runs from; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def write_bytes_atomically(path: Path, payload: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write canonical, human-readable JSON atomically; NaN and infinities are refused."""
    write_bytes_atomically(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


@contextmanager
def publish_artifact(target: Path, manifest: Manifest) -> Iterator[Path]:
    """Yield an empty folder to fill; on success it becomes `target`, on error it vanishes.

    An artifact already at `target` is replaced when it has the same key and moved to
    `.superseded/` beside it otherwise.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_staging(target)
    staging = target.with_name(f".staging-{target.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    staging.mkdir()
    try:
        yield staging
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        hashes = {path.relative_to(staging).as_posix(): file_hash(path) for path in files}
        revision = manifest.git_revision or git_revision()
        complete = Manifest(**{**asdict(manifest), "files": hashes, "git_revision": revision})
        write_json(staging / MANIFEST_NAME, asdict(complete))
        for path in files:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        _replace(target, staging, complete.key)
        _sync_directory(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def retire_artifact(target: Path) -> None:
    """Move the artifact at `target`, if there is one, to `.superseded/` beside it: it no longer describes the pair."""
    if target.exists():
        _move_aside(target, keep=True)
        _sync_directory(target.parent)


def read_manifest(directory: Path, *, kind: str) -> Manifest:
    """The manifest of the artifact at `directory`.

    Raises:
        ArtifactError: nothing is there, the manifest is damaged, or it is of another kind or schema.
    """
    path = directory / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(
            f"{directory} holds no {kind}: {MANIFEST_NAME} is missing; materialise {kind} first"
        ) from None
    return parse_manifest(text, str(path), kind=kind)


def parse_manifest(text: bytes, label: str, *, kind: str) -> Manifest:
    """The manifest in some JSON text.

    Args:
        text: the JSON.
        label: how messages call it.
        kind: what it must describe.

    Raises:
        ArtifactError: it is damaged, or of another kind or schema.
    """
    try:
        manifest = Manifest(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{label} is not a readable manifest ({error}); materialise {kind} again") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{label} has schema version {manifest.schema_version}, this version reads {SCHEMA_VERSION}; "
            f"materialise {kind} again"
        )
    if manifest.kind != kind:
        raise ArtifactError(f"{label} describes a {manifest.kind!r}, expected a {kind!r}")
    return manifest


def open_artifact(directory: Path, *, kind: str, parents: Mapping[str, str] | None = None) -> Artifact:
    """Open an artifact after verifying every file's hash and, where given, its parents.

    Args:
        directory: the artifact's folder.
        kind: stage that must have made it.
        parents: content hash each named parent must have had.

    Raises:
        ArtifactError: missing, damaged, truncated or foreign files, or other parents; the message
            says what differs and what to run.
    """
    manifest = read_manifest(directory, kind=kind)
    for name, expected in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise ArtifactError(f"{path} is missing although the manifest lists it; materialise {kind} again")
        if file_hash(path) != expected:
            raise ArtifactError(f"{path} does not have the hash its manifest states; materialise {kind} again")
    for parent, expected in (parents or {}).items():
        found = manifest.parents.get(parent)
        if found != expected:
            raise ArtifactError(
                f"{directory} was made from {parent} {(found or 'none')[:12]}, but the current {parent} is "
                f"{expected[:12]}; materialise {kind} again"
            )
    return Artifact(directory, manifest)


def read_json(path: Path) -> Any:
    """The value in a JSON file; `ArtifactError` where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is truncated or not JSON ({error})") from error


def read_table(path: Path, schema: Mapping[str, pl.DataType] | None = None) -> pl.DataFrame:
    """A Parquet file as a frame.

    Args:
        path: the file.
        schema: names and types its columns must have, where given.

    Raises:
        ArtifactError: the file is missing, damaged or has other columns.
    """
    try:
        frame = pl.read_parquet(path)
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ArtifactError(f"{path} is truncated or not a Parquet file ({error})") from error
    if schema is not None and dict(frame.schema) != dict(schema):
        differing = sorted(set(frame.schema.items()) ^ set(schema.items()), key=str)
        raise ArtifactError(f"{path} has other columns than this version writes: {differing}")
    return frame


def _key_on_disk(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replace(target: Path, staging: Path, key: str) -> None:
    """Put a complete folder where the target is; of two processes that do so at once, the last one wins."""
    while True:
        try:
            if target.exists():
                _move_aside(target, keep=_key_on_disk(target) != key)
            staging.rename(target)
        except OSError as error:
            # The other has put its own there, or moved aside what we were about to.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT) or not staging.exists():
                raise
        else:
            return


def _move_aside(target: Path, *, keep: bool) -> None:
    retired = target.with_name(f".staging-{target.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}-retired")
    if keep:
        label = (_key_on_disk(target) or uuid.uuid4().hex)[:12]
        retired = target.parent / SUPERSEDED_FOLDER / f"{target.name}-{label}"
        shutil.rmtree(retired, ignore_errors=True)
        retired.parent.mkdir(exist_ok=True)
    target.rename(retired)
    if not keep:
        shutil.rmtree(retired)


def _remove_abandoned_staging(target: Path) -> None:
    for leftover in target.parent.glob(f".staging-{target.name}-*"):
        owner = int(leftover.name.removeprefix(f".staging-{target.name}-").split("-")[0])
        if not _is_running(owner):
            shutil.rmtree(leftover, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
