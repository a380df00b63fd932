"""What the stage table says of stages that train by themselves."""

from __future__ import annotations

import pytest

from archetype_dagster.pipeline.stages import STAGES

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
