"""The stage table against what the stages really read, and the lineage rules built on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from archetype_dagster import settings as settings_module
from archetype_dagster.jobs import Outcome
from archetype_dagster.pipeline import computation
from archetype_dagster.pipeline.stages import CORE_STAGES, STAGES, stage_settings
from archetype_dagster.settings import Settings, load_settings
from assets import execution

OTHER_CHOICES = {
    "planner.trade_constraint": "round_trip",
    "features.scale": "raw",
    "codebook.decoding": "single_change",
    "refinement.override": "hold",
    "selection.backbone": "RecurrentBackbone",
    "selection.lookback_bars": 8,
    "selection.backbone_kwargs": {"hidden_size": 8},
    "refinement.backbone": "PatchTSTBackbone",
    "refinement.lookback_bars": 12,
    "refinement.backbone_kwargs": {"d_model": 8, "n_layers": 1},
    "execution.execution_delay_bars": 1,
    "execution.horizon_boundary": "settle",
    "execution.depth_policy": "last_level",
}
# The three parts of a dataset are cut at once; only the part that is used reaches the content.
CUT_WITH_THE_REST = {"splits.test_start", "splits.test_end", "splits.validation_start", "splits.validation_end"}


class Recorder:
    """Which settings of the run each stage reads between the start of its computation and its publication."""

    def __init__(self) -> None:
        self.stage = ""
        self.sections: dict[int, tuple[str, Any]] = {}
        self.read: dict[str, set[str]] = defaultdict(set)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = settings_module.Section.__getattribute__

        def recording(section: Any, name: str) -> Any:
            value = original(section, name)
            # By identity, because a trained codebook carries settings of its own.
            place, _ = self.sections.get(id(section), ("", None))
            if place and name in type(section).model_fields and not isinstance(value, settings_module.Section):
                self.read[self.stage].add(f"{place}.{name}")
            return value

        def starting(pair: str, settings: Settings, device: Any, resume: Any, progress: Any) -> computation.StageRun:
            self.stage = resume.path.stem
            self.sections = dict(_sections(settings, pair))
            return stage_run(pair, settings, device, resume, progress)

        def published(*arguments: Any, **options: Any) -> Any:
            self.sections = {}
            return open_artifact(*arguments, **options)

        stage_run, open_artifact = computation.StageRun, execution.open_artifact
        monkeypatch.setattr(settings_module.Section, "__getattribute__", recording)
        monkeypatch.setattr(computation, "StageRun", starting)
        monkeypatch.setattr(execution, "open_artifact", published)


def _sections(settings: Settings, pair: str) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Place of every section of the tree by its identity; the section itself keeps the identity taken."""
    waiting = [(name, getattr(settings, name)) for name in type(settings).model_fields]
    if pair:
        waiting.append(("pair", settings.pairs[pair]))
    while waiting:
        place, section = waiting.pop()
        if isinstance(section, settings_module.Section):
            yield id(section), (place, section)
            waiting += [(f"{place}.{name}", getattr(section, name)) for name in type(section).model_fields]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, run_tiny) -> tuple[Recorder, Outcome]:
    """The tiny graph with every choice made differently than by default, recorded."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder.install(monkeypatch)
        outcome = run_tiny(tmp_path_factory.mktemp("recorded") / "result", changes=OTHER_CHOICES)
    return recorder, outcome


@pytest.mark.slow
def test_every_check_passes_under_the_other_choices_too(recorded: tuple[Recorder, Outcome]):
    _, outcome = recorded
    assert outcome.failures == outcome.failed_checks == outcome.warnings == ()
    assert set(outcome.materialised) == set(CORE_STAGES)
    assert outcome.passed_checks == 7


@pytest.mark.slow
def test_every_setting_a_stage_reads_is_in_its_key(recorded: tuple[Recorder, Outcome]):
    recorder, _ = recorded
    assert recorder.read.keys() == set(CORE_STAGES) - {"leaderboard"}
    missing = {}
    for kind, read in recorder.read.items():
        declared = set(stage_settings(STAGES[kind], load_settings("smoke", OTHER_CHOICES), "ETH"))
        declared |= {name.rpartition(".")[0] for name in declared if ".backbone_kwargs." in name}
        if "pair.beta_1" in read:
            read = read - {"pair.beta_1"} | {"refinement.beta_1"}
        # The market's seed is the key's own part.
        missing[kind] = read - declared - CUT_WITH_THE_REST - {"market.path", "market.seed", "market.by_month"}
    assert missing == {kind: set() for kind in recorder.read}
