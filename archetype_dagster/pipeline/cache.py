"""Stages computed on demand under any settings, each kept under its key so that nothing is computed twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from archetype_dagster.artifacts import Artifact, open_artifact, publish_artifact
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.computation import COMPUTATIONS, StageRun
from archetype_dagster.pipeline.inputs import policy_of
from archetype_dagster.pipeline.manifests import source_hashes, stage_manifest
from archetype_dagster.pipeline.stages import STAGES
from archetype_dagster.settings import Settings
from archetype_dagster.types import Progress

logger = logging.getLogger(__name__)

Published = Callable[[str, str], Path]


@dataclass(frozen=True)
class StageCache:
    """Artifacts by key in one folder; many processes may share it.

    Attributes:
        root: folder of the cache.
        device: where networks train.
        progress: where long work reports to.
        published: folder of a stage's artifact of a pair in a result folder; used where it is the one wanted.
    """

    root: Path
    device: torch.device
    progress: Progress
    published: Published | None = None

    def artifact(self, kind: str, settings: Settings, pair: str) -> Artifact:
        """The artifact of a stage under some settings: found, or else computed with all it needs.

        A computation that was stopped goes on where it was.

        Args:
            kind: a stage of `COMPUTATIONS`.
            settings: the settings it is wanted for.
            pair: traded pair.

        Raises:
            ArtifactError: the stage is not one that can be computed here.
            ArchetypeError: the computation's own errors.
        """
        if kind not in COMPUTATIONS:
            raise ArtifactError(f"{kind} cannot be computed on its own; choose from {', '.join(COMPUTATIONS)}")
        stage = STAGES[kind]
        parents = [self.artifact(parent, settings, pair) for parent in stage.parents]
        source = {} if parents else source_hashes(settings, pair)
        wanted = stage_manifest(stage, pair, settings, parents, source)
        if self.published is not None:
            found = _opened(self.published(kind, pair), kind, wanted.key)
            if found is not None:
                return found
        directory = self.root / kind / f"{pair}-{wanted.key[:32]}"
        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{directory.name}-{kind}.lock"):
            found = _opened(directory, kind, wanted.key)
            if found is not None:
                return found
            resume = ResumePoint(self.root / ".resume" / f"{kind}-{directory.name}.safetensors", wanted.key)
            run = StageRun(pair, settings, self.device, resume, self.progress)
            made = COMPUTATIONS[kind](run, {parent.manifest.kind: parent for parent in parents})
            with publish_artifact(directory, wanted) as folder:
                made.save(folder)
            resume.clear()
            return open_artifact(directory, kind=kind)

    def policy(self, settings: Settings, pair: str) -> TradingPolicy:
        """The three phases trained under some settings."""
        kinds = ("vq_codebook", "selection_checkpoint", "refinement_checkpoint")
        codebook, selector, refiner = (self.artifact(kind, settings, pair) for kind in kinds)
        return policy_of(codebook, selector, refiner, settings)


def _opened(directory: Path, kind: str, key: str) -> Artifact | None:
    if not directory.exists():
        return None
    try:
        artifact = open_artifact(directory, kind=kind)
    except ArtifactError as error:
        logger.warning("computing again: %s", error)
        return None
    return artifact if artifact.manifest.key == key else None
