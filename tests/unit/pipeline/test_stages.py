"""What the stage table says of stages that train by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from archetype_dagster.pipeline.stages import STAGES, stage_settings
from archetype_dagster.settings import load_settings

PHASES = (
    "feature_table",
    "dp_trajectories",
    "vq_codebook",
    "archetype_returns",
    "selection_checkpoint",
    "refinement_checkpoint",
)


@pytest.mark.parametrize("kind", [kind for kind, stage in STAGES.items() if stage.group == "studies"])
def test_a_study_is_made_again_where_a_phase_that_it_trains_is_another_algorithm(kind: str):
    _, *trained = STAGES[kind].code_version.split(".")
    assert trained == [STAGES[phase].code_version for phase in PHASES]


def test_windows_are_in_the_keys_of_what_reads_them_and_nowhere_without_a_backbone():
    def read(kind: str, **changes: object) -> dict[str, object]:
        found = stage_settings(STAGES[kind], load_settings("smoke", changes), "ETH")
        return {name: value for name, value in found.items() if "backbone" in name or "lookback" in name}

    chosen = {"selection.backbone": "RecurrentBackbone", "selection.lookback_bars": 8}
    for kind in ("selection_checkpoint", "refinement_checkpoint", "evaluation_report", "horizon_study"):
        assert read(kind) == {}
    assert read("selection_checkpoint", **chosen) == read("evaluation_report", **chosen) == chosen
    assert read("refinement_checkpoint", **chosen) == read("archetype_returns", **chosen) == {}


def test_another_content_of_a_pretrained_file_is_another_key_and_another_place_of_it_is_not(tmp_path: Path):
    def key(path: Path) -> object:
        chosen = {
            "selection.backbone": "AutoencoderBackbone",
            "selection.lookback_bars": 4,
            "selection.backbone_kwargs": {"pretrained_path": str(path)},
        }
        return stage_settings(STAGES["selection_checkpoint"], load_settings("smoke", chosen), "ETH")

    first, second, third = (tmp_path / name for name in "abc")
    for file, text in ((first, "weights"), (second, "weights"), (third, "others")):
        file.write_text(text)
    assert key(first) == key(second) != key(third) != key(tmp_path / "missing")
