"""Where artifacts lie, and how assets hand them to each other: by reference, verified when loaded."""

import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import dagster as dg
from filelock import FileLock
from pydantic import Field

from archetype_dagster.artifacts import MANIFEST_NAME, Artifact, Manifest, open_artifact
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.stages import STAGES
from resources.failure import clear_failure

if TYPE_CHECKING:
    from archetype_dagster.artifact_mirror import ArtifactMirror
    from archetype_dagster.checkpoints import ResumePoint

# The method's own names for its phases; every other stage's folder is called like the stage.
FOLDERS: Final = MappingProxyType(
    {
        **{kind: kind for kind in STAGES},
        "vq_codebook": "phase1_archetype_discovery",
        "selection_checkpoint": "phase2_archetype_selection",
        "refinement_checkpoint": "phase3_archetype_refinement",
        "onnx_policy": "onnx",
        "evaluation_report": "evaluation",
    }
)


# Far longer than the replacement of a folder takes.
_REPLACEMENT_SECONDS: Final = 0.2
RESULT_VARIABLE: Final = "ARCHETYPE_RESULT"
MIRROR_VARIABLE: Final = "ARCHETYPE_MIRROR"


class ArtifactStore(dg.ConfigurableResource["ArtifactStore"]):
    """The result folder: one folder a pair, one folder a stage in it, one a part in that of a stage made in parts."""

    root: str | None = Field(
        default=None,
        description=f"Folder of every artifact; empty takes {RESULT_VARIABLE} of the environment, or else result.",
    )
    mirror: str | None = Field(
        default=None,
        description="Object storage that keeps what is finished for other machines, e.g. s3://bucket/path, without "
        f"keys; empty takes {MIRROR_VARIABLE} of the environment, or else there is none.",
    )

    @property
    def path(self) -> Path:
        """The root as an absolute path."""
        return Path(self.root or os.environ.get(RESULT_VARIABLE) or "result").expanduser().resolve()

    @property
    def shared_stages(self) -> Path:
        """Where studies keep what they train, by key."""
        return self.path / ".stages"

    def directory(self, kind: str, pair: str | None, part: str | None = None) -> Path:
        """Folder of a stage's artifact; `pair` is None for a stage over all pairs."""
        folder = self.path / FOLDERS[kind] if pair is None else self.path / pair / FOLDERS[kind]
        return folder if part is None else folder / part

    def holds(self, kind: str, pair: str | None, part: str | None = None) -> bool:
        """True where a stage has published something for the pair."""
        return (self.directory(kind, pair, part) / MANIFEST_NAME).is_file()

    def open(self, kind: str, pair: str | None, part: str | None = None) -> Artifact:
        """The verified artifact of a stage; `ArtifactError` says what is wrong and what to run."""
        directory = self.directory(kind, pair, part)
        try:
            return open_artifact(directory, kind=kind)
        except (ArtifactError, FileNotFoundError):
            # Between two renames of a run that replaces it there is none, and a file read before is not of the next.
            time.sleep(_REPLACEMENT_SECONDS)
            return open_artifact(directory, kind=kind)

    def fetch(self, wanted: Manifest) -> Artifact | None:
        """The artifact that another machine has finished, brought to its folder; None without one or without mirror."""
        mirror = self._mirror()
        directory = self.directory(wanted.kind, wanted.pair, wanted.part)
        return None if mirror is None else mirror.fetch(wanted, directory)

    def share(self, artifact: Artifact) -> None:
        """Keep a finished artifact for other machines, where there is a mirror."""
        mirror = self._mirror()
        if mirror is not None:
            mirror.publish(artifact)

    def _mirror(self) -> "ArtifactMirror | None":
        root = self.mirror or os.environ.get(MIRROR_VARIABLE)
        if not root:
            return None
        from archetype_dagster.artifact_mirror import ArtifactMirror

        return ArtifactMirror(root)

    def lock(self, kind: str, pair: str | None, part: str | None = None) -> FileLock:
        """Held while a stage is computed and published, so that a second run waits and then reuses it."""
        folder = self.path / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{pair or 'all'}-{kind}{f'-{part}' if part else ''}.lock")

    def curves(self, kind: str, pair: str | None, key: str) -> Path:
        """Folder of a stage's TensorBoard files; one a key, so that what other settings gave stays beside it."""
        folder = self.path if pair is None else self.path / pair
        return folder / ".tensorboard" / kind / key[:12]

    def resume_point(self, kind: str, pair: str | None, key: str) -> "ResumePoint":
        """Where a stage's training loop keeps its state until the artifact is published."""
        from archetype_dagster.checkpoints import ResumePoint

        folder = self.path if pair is None else self.path / pair
        return ResumePoint(folder / ".resume" / f"{kind}.safetensors", key)


class ArtifactIOManager(dg.ConfigurableIOManager):
    """Passes references: assets publish by themselves, so nothing is written here."""

    store: dg.ResourceDependency[ArtifactStore]

    def handle_output(self, context: dg.OutputContext, obj: Artifact) -> None:
        """Check that the asset published where the store keeps this asset and partition."""
        expected = self.store.directory(context.asset_key.path[-1], obj.manifest.pair, obj.manifest.part)
        if obj.directory != expected:
            raise ArtifactError(f"{context.asset_key.to_user_string()} published {obj.directory}, expected {expected}")

    def load_input(self, context: dg.InputContext) -> Artifact | dict[str, Artifact]:
        """One pair's verified artifact, or those of all pairs by name where the input spans partitions."""
        kind = context.asset_key.path[-1]
        with clear_failure():
            if context.dagster_type.typing_type is Artifact:
                return self.store.open(kind, context.asset_partition_key if context.has_asset_partitions else None)
            pairs = context.asset_partition_keys
            return {pair: self.store.open(kind, pair) for pair in pairs if self.store.holds(kind, pair)}
