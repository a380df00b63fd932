import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from archetype_dagster.artifacts import Artifact, open_artifact
from resources.storage import FOLDERS
from resources.tracking import NoTracker, TrackingResource

# Of each phase, one curve that it must have.
PHASES = {
    "vq_codebook": "codebook/validation_accuracy",
    "selection_checkpoint": "validation_return",
    "refinement_checkpoint": "validation_return",
}
SHORT = {"codebook.epochs": 2, "selection.total_steps": 2_000, "refinement.total_steps": 2_000}


class CurvesAlone(TrackingResource):
    """TensorBoard without MLflow, whose store takes seconds to make."""

    def run(self, **_: object):
        return nullcontext(NoTracker())


@pytest.mark.slow
def test_each_phase_leaves_its_curves_beside_the_result_and_the_artifact_as_it_was(tmp_path: Path, run_tiny):
    root = tmp_path / "result"

    def made(phase: str) -> Artifact:
        return open_artifact(root / "ETH" / FOLDERS[phase], kind=phase)

    assert run_tiny(root, selection="+refinement_checkpoint", changes=SHORT, tracking=CurvesAlone()).success
    found = EventMultiplexer().AddRunsFromDirectory(str(root))
    found.Reload()
    for phase, curve in PHASES.items():
        name = f"ETH/.tensorboard/{phase}/{made(phase).manifest.key[:12]}"
        assert curve in found.Runs()[name]["scalars"]
        assert len(found.Scalars(name, curve)) >= 2

    files, content = list(root.rglob("events.out.tfevents*")), made("vq_codebook").content_hash
    shutil.rmtree(root / "ETH" / FOLDERS["vq_codebook"])
    switched_off = CurvesAlone(tensorboard=False)
    assert run_tiny(root, selection="vq_codebook", changes=SHORT, tracking=switched_off).success
    assert made("vq_codebook").content_hash == content
    assert list(root.rglob("events.out.tfevents*")) == files
