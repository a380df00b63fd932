"""Finished artifacts in object storage, by stage and key, so that what one machine computed no other computes again.

The result folder stays where work happens: its locks, renames and resume points need a real filesystem, which
object storage is not. Here lies only what is finished and never changes. A file is stored under the hash of its
bytes, and the manifest is written last: it alone makes an artifact exist, so a reader never sees half of one and two
writers cannot mix their files.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from upath import UPath

from archetype_dagster.artifacts import Artifact, Manifest, open_artifact, parse_manifest, publish_artifact
from archetype_dagster.errors import ArtifactError

logger = logging.getLogger(__name__)

_MANIFEST_LIMIT: Final = 2**26
_CHUNK_BYTES: Final = 2**22
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ArtifactMirror:
    """A folder in object storage that many machines share.

    Attributes:
        root: its address as fsspec reads it, e.g. `s3://bucket/archetype`, `gs://...` or a path. Access keys and
            endpoints belong in the environment (for S3 `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), not in it.
    """

    root: str

    def publish(self, artifact: Artifact) -> bool:
        """Store a finished artifact; False where the same content is there already.

        Raises:
            OSError: the storage cannot be reached or written.
        """
        manifest = artifact.manifest
        there = self._manifest(manifest)
        if there is not None and there.content_hash == manifest.content_hash:
            return False
        for name, digest in manifest.files.items():
            with artifact.path(name).open("rb") as source, self._file(digest).open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
        _ready(self._marker(manifest)).write_bytes(json.dumps(asdict(manifest), sort_keys=True).encode())
        return True

    def fetch(self, wanted: Manifest, target: Path) -> Artifact | None:
        """The artifact that `wanted` describes, brought to `target` and verified; None where there is none.

        What does not have the bytes that its manifest states is taken out of the mirror, with a warning.

        Args:
            wanted: kind, pair and key of the artifact.
            target: folder it is published to, as if it had been computed here.

        Raises:
            OSError: the storage cannot be reached.
        """
        manifest = self._manifest(wanted)
        if manifest is None:
            return None
        try:
            with publish_artifact(target, manifest) as folder:
                for name, digest in manifest.files.items():
                    self._download(name, digest, folder)
        except ArtifactError as error:
            logger.warning("taken out of the mirror: %s", error)
            self._marker(wanted).unlink(missing_ok=True)
            return None
        return open_artifact(target, kind=manifest.kind)

    def _download(self, name: str, digest: str, folder: Path) -> None:
        source, target = self._file(digest), folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        found = sha256()
        try:
            with source.open("rb") as stream, target.open("xb") as copy:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.update(chunk)
                    copy.write(chunk)
        except FileNotFoundError:
            raise ArtifactError(f"{source} is missing although a manifest lists it as {name}") from None
        if found.hexdigest() != digest:
            raise ArtifactError(f"{source} does not have the hash that is its name")

    def _manifest(self, wanted: Manifest) -> Manifest | None:
        """The manifest stored under a key; None where there is none, or one of something else, or none that is sane."""
        marker = self._marker(wanted)
        try:
            with marker.open("rb") as stream:
                text = stream.read(_MANIFEST_LIMIT + 1)
        except FileNotFoundError:
            return None
        try:
            manifest = parse_manifest(text[:_MANIFEST_LIMIT], str(marker), kind=wanted.kind)
        except ArtifactError as error:
            logger.warning("ignored: %s", error)
            return None
        if not _is_sane(manifest) or (manifest.pair, manifest.key) != (wanted.pair, wanted.key):
            logger.warning("ignored: %s describes another artifact or names files outside of it", marker)
            return None
        return manifest

    def _marker(self, manifest: Manifest) -> UPath:
        return UPath(self.root) / "artifacts" / manifest.kind / (manifest.pair or "all") / f"{manifest.key}.json"

    def _file(self, digest: str) -> UPath:
        return _ready(UPath(self.root) / "files" / digest[:2] / digest)


def _ready(path: UPath) -> UPath:
    """The same path, with the folder that a filesystem wants before it writes there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _is_sane(manifest: Manifest) -> bool:
    """True where a manifest that anybody may have written leads nowhere but into its own folder."""
    return (
        isinstance(manifest.facts, dict)
        and isinstance(manifest.files, dict)
        and all(_stays_inside(name) and _SHA256.fullmatch(str(digest)) for name, digest in manifest.files.items())
    )


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
