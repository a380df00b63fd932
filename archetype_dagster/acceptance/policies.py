"""The policies that are judged: one a seed, trained on one market, found again where they were trained before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.refinement import Refiner
from archetype_dagster.selection import Selector
from archetype_dagster.settings import AcceptanceSettings, Settings, load_settings
from archetype_dagster.studies.results import StudyResult
from archetype_dagster.studies.runs import across_seeds, judged
from archetype_dagster.studies.training import StudyRun
from archetype_dagster.types import Progress

Note = Callable[[str], None]


@dataclass(frozen=True)
class AcceptanceRun:
    """What all four metrics are measured with.

    Attributes:
        settings: budgets and targets.
        root: folder where everything trained is kept.
        data: folder of the real data; None where there is none.
        device: where networks run.
        progress: told of long work.
        note: told in a line what is being measured.
    """

    settings: AcceptanceSettings
    root: Path
    data: Path | None
    device: torch.device
    progress: Progress
    note: Note

    @property
    def baseline(self) -> Settings:
        """The settings that a sweep must improve on."""
        return load_settings(self.settings.profile, self.settings.overrides)

    @property
    def cache(self) -> StageCache:
        """Where policies and their accounts are kept."""
        return StageCache(self.root / "stages", self.device, self.progress)

    def judged_seeds(self, settings: Settings, what: str) -> dict[int, StudyResult]:
        """The accounts of one policy a seed on the test split, all on the market of `settings`.

        Raises:
            ArchetypeError: the computations' own errors.
        """
        results = {}
        for (_, seed), run in across_seeds({what: StudyRun(settings)}, self.settings.seeds).items():
            self.note(f"{what}, seed {seed}")
            results[seed] = judged(run, self.settings.pair, self.cache)
        return results

    def steps_taken(self, settings: Settings) -> int:
        """Environment steps that the selector and the refiner of a policy trained for, batches taken whole."""
        kinds = ("selection_checkpoint", "refinement_checkpoint")
        selector, refiner = self.cache.artifacts(kinds, settings, self.settings.pair)
        histories = (Selector.load(selector.directory).history, Refiner.load(refiner.directory).history)
        return sum(int(history["steps"][-1]) for history in histories)
