"""Stages computed on demand under any settings, each kept under its key so that nothing is computed twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from archetype_dagster.artifacts import Artifact, Manifest, open_artifact, publish_artifact
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.months import covered_months, month_bars
from archetype_dagster.pipeline.computation import COMPUTATIONS, Saveable, StageRun
from archetype_dagster.pipeline.inputs import policy_of
from archetype_dagster.pipeline.manifests import parent_name, source_hashes, stage_manifest
from archetype_dagster.pipeline.stages import STAGES, Stage
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
        sealed: whether its stages may not see the test split; see `split_dataset`.
    """

    root: Path
    device: torch.device
    progress: Progress
    published: Published | None = None
    sealed: bool = False

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
        return self.artifacts((kind,), settings, pair)[0]

    def artifacts(self, kinds: Sequence[str], settings: Settings, pair: str) -> list[Artifact]:
        """`artifact` of several stages; what they share is found and verified once."""
        known: dict[str, Artifact] = {}
        return [self._artifact(kind, settings, pair, known) for kind in kinds]

    def kept(
        self,
        stage: Stage,
        settings: Settings,
        pair: str,
        parents: Sequence[Artifact],
        make: Callable[[ResumePoint], Saveable],
    ) -> Artifact:
        """What `make` makes from some artifacts, made once and then found under its key.

        Args:
            stage: name, settings and version that the key is made of; it need not be in the graph.
            settings: the settings it is wanted for.
            pair: traded pair.
            parents: artifacts it is made from.
            make: called where it is not there yet, with the place where a training loop keeps its state.
        """
        return self._kept(stage_manifest(stage, pair, settings, parents, {}), make)

    def found(self, stage: Stage, pair: str, key: str) -> Artifact:
        """What `kept` keeps under a key; `ArtifactError` where it is gone or damaged."""
        return open_artifact(self._directory(stage.kind, pair, key), kind=stage.kind)

    def _artifact(self, kind: str, settings: Settings, pair: str, known: dict[str, Artifact]) -> Artifact:
        if kind in known:
            return known[kind]
        if kind not in COMPUTATIONS:
            raise ArtifactError(f"{kind} cannot be computed on its own; choose from {', '.join(COMPUTATIONS)}")
        stage = STAGES[kind]
        parents = [found for parent in stage.parents for found in self._parents(parent, settings, pair, known)]
        source = {} if parents else source_hashes(settings, pair)
        wanted = stage_manifest(stage, pair, settings, parents, source)

        def make(resume: ResumePoint) -> Saveable:
            run = StageRun(pair, settings, self.device, resume, self.progress, self.sealed)
            return COMPUTATIONS[kind](run, {parent_name(parent, stage): parent for parent in parents})

        found = None if self.published is None else _opened(self.published(kind, pair), kind, wanted.key)
        known[kind] = self._kept(wanted, make) if found is None else found
        return known[kind]

    def _parents(self, kind: str, settings: Settings, pair: str, known: dict[str, Artifact]) -> list[Artifact]:
        """The artifact of a stage, or those of all its months."""
        if STAGES[kind].parts != "month":
            return [self._artifact(kind, settings, pair, known)]
        if not settings.market.by_month:
            return []
        months = covered_months(settings.market, settings.pair(pair))
        return [self._month(STAGES[kind], settings, pair, month) for month in months]

    def _month(self, stage: Stage, settings: Settings, pair: str, month: str) -> Artifact:
        wanted = stage_manifest(stage, pair, settings, (), source_hashes(settings, pair, month), month)
        if self.published is not None:
            found = _opened(self.published(stage.kind, pair) / month, stage.kind, wanted.key)
            if found is not None:
                return found
        return self._kept(wanted, lambda _: month_bars(settings.market, settings.pair(pair), month))

    def _kept(self, wanted: Manifest, make: Callable[[ResumePoint], Saveable]) -> Artifact:
        kind = wanted.kind
        directory = self._directory(kind, str(wanted.pair), wanted.key)
        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{directory.name}-{kind}.lock"):
            found = _opened(directory, kind, wanted.key)
            if found is not None:
                return found
            resume = ResumePoint(self.root / ".resume" / f"{kind}-{directory.name}.safetensors", wanted.key)
            made = make(resume)
            with publish_artifact(directory, wanted) as folder:
                made.save(folder)
            resume.clear()
            return open_artifact(directory, kind=kind)

    def _directory(self, kind: str, pair: str, key: str) -> Path:
        return self.root / kind / f"{pair}-{key[:32]}"

    def policy(self, settings: Settings, pair: str) -> TradingPolicy:
        """The three phases trained under some settings."""
        kinds = ("vq_codebook", "selection_checkpoint", "refinement_checkpoint")
        codebook, selector, refiner = self.artifacts(kinds, settings, pair)
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
