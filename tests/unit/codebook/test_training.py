import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.codebook.history import HISTORY_SCHEMA
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import NoProgress

Train = Callable[..., Codebook]
FilesOf = Callable[..., Mapping[str, bytes]]
Market = Callable[..., MarketDataset]

VARIANTS = [
    {},
    {"pooling": "attention", "decoder": "bilstm", "decoding": "single_change", "initialisation": "direction_aware"},
]


class StopAfter(NoProgress):
    """Interrupts once `epochs` epochs are done, as a person or an orchestrator would."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        if completed == self.epochs:
            raise KeyboardInterrupt


class Record(NoProgress):
    def __init__(self) -> None:
        self.seen: list[tuple[int, Mapping[str, float] | None]] = []

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.seen.append((completed, metrics))


def test_codes_learn_to_rebuild_the_demonstrations(train: Train) -> None:
    history = train().history
    assert history["reconstruction"][-1] < 0.6 * history["reconstruction"][0]
    assert history["validation_accuracy"][-1] > 0.8
    assert history["used_codes"][-1] >= 3


def test_history_tells_losses_and_code_usage_of_every_epoch(train: Train, settings: CodebookSettings) -> None:
    record = Record()
    codebook = train(progress=record)
    history = codebook.history
    assert history.schema == HISTORY_SCHEMA
    assert history["epoch"].to_list() == list(range(1, 8))
    assert history["quantised"].to_list() == [False] + 6 * [True]
    coded = history.filter("quantised")
    terms = coded["reconstruction"] + coded["codebook_loss"] + coded["commitment_loss"]
    np.testing.assert_allclose(coded["loss"], terms, rtol=1e-12)
    np.testing.assert_allclose(coded["commitment_loss"], settings.commitment * coded["codebook_loss"], rtol=1e-12)
    counts = np.array(coded["code_counts"].to_list())
    assert (counts.sum(axis=1) == counts[0].sum()).all()
    np.testing.assert_array_equal(coded["used_codes"], (counts > 0).sum(axis=1))
    assert codebook.usage.counts.tolist() == counts[-1].tolist()
    assert [completed for completed, _ in record.seen] == list(range(8))
    assert record.seen[-1][1]["codebook/perplexity"] == codebook.usage.perplexity


@pytest.mark.parametrize("changes", VARIANTS)
def test_the_same_seed_gives_the_same_bytes(
    train: Train, files_of: FilesOf, settings: CodebookSettings, tmp_path: Path, changes: dict[str, str]
) -> None:
    short = settings.model_copy(update={**changes, "epochs": 2})
    first, second, other = (train(short, seed=seed) for seed in (0, 0, 1))
    assert files_of(first, tmp_path / "first") == files_of(second, tmp_path / "second")
    assert first.codes.tobytes() != other.codes.tobytes()


@pytest.mark.parametrize("epochs_done", [1, 4])
@pytest.mark.parametrize("changes", VARIANTS)
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    train: Train,
    files_of: FilesOf,
    settings: CodebookSettings,
    tmp_path: Path,
    changes: dict[str, str],
    epochs_done: int,
) -> None:
    chosen = settings.model_copy(update=changes)
    resume = ResumePoint(tmp_path / "resume.safetensors", "key")
    with pytest.raises(KeyboardInterrupt):
        train(chosen, resume=resume, progress=StopAfter(epochs_done))
    record = Record()
    resumed = train(chosen, resume=resume, progress=record)
    assert record.seen[0][0] == epochs_done
    assert files_of(resumed, tmp_path / "resumed") == files_of(train(chosen), tmp_path / "whole")


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.types import NoProgress

class KillInTraining(NoProgress):
    def advance(self, completed, metrics=None):
        if completed == 3:
            os.kill(os.getpid(), signal.SIGKILL)

shared = runpy.run_path(sys.argv[1])
shared["trained"](resume=ResumePoint(Path(sys.argv[2]), "key"), progress=KillInTraining())
"""


def test_a_run_killed_by_kill_9_goes_on_to_the_same_bytes(train: Train, files_of: FilesOf, tmp_path: Path) -> None:
    state = tmp_path / "resume.safetensors"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).with_name("conftest.py")), str(state)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    saved = ResumePoint(state, "key").load()
    assert saved is not None
    assert saved[1]["epochs_done"] == 3
    resumed = train(resume=ResumePoint(state, "key"))
    assert files_of(resumed, tmp_path / "resumed") == files_of(train(), tmp_path / "whole")


def test_dead_codes_are_reseeded_from_the_encodings_and_live_again(
    train: Train, settings: CodebookSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def far_away(encodings: np.ndarray, *args: object, **options: object) -> np.ndarray:
        codes = np.full((settings.num_codes, settings.code_dim), 1e3, dtype=np.float32)
        codes[0] = encodings.mean(axis=0)
        return codes

    monkeypatch.setattr("archetype_dagster.codebook.training.initial_codes", far_away)
    codebook = train(settings.model_copy(update={"dead_code_epochs": 2}))
    history = codebook.history.filter("quantised")
    assert history["used_codes"][:2].to_list() == [1, 1]
    assert history["perplexity"][:2].to_list() == [1.0, 1.0]
    assert history["alarm"][:2].to_list() == [True, True]
    assert history["reseeded"][:2].to_list() == [0, 3]
    assert history["used_codes"][2] > 1
    assert np.abs(codebook.codes).max() < 100
    assert "uses 1 of 4 codes" in caplog.text


def test_a_code_is_never_reseeded_after_the_last_epoch(train: Train, settings: CodebookSettings) -> None:
    codebook = train(settings.model_copy(update={"num_codes": 40, "dead_code_epochs": 1, "epochs": 3}))
    counts = codebook.history["code_counts"][-1].to_list()
    assert 0 in counts
    assert codebook.history["reseeded"][-1] == 0


def test_codes_may_start_without_pretraining_and_nothing_be_held_out(train: Train, settings: CodebookSettings) -> None:
    history = train(settings.model_copy(update={"pretrain_epochs": 0, "epochs": 2, "validation_fraction": 0.0})).history
    assert history["quantised"].to_list() == [True, True]
    assert history["validation_accuracy"].to_list() == [None, None]
    assert sum(history["code_counts"][0].to_list()) == 200


def test_a_loss_that_is_not_finite_stops_the_run_with_a_reason(train: Train, market: Market) -> None:
    dataset = market()
    broken = replace(dataset, states=np.where(np.arange(len(dataset))[:, None] == 5, np.nan, dataset.states))
    with pytest.raises(ArchetypeError, match="loss of Phase I is not finite in epoch 1"):
        train(dataset=replace(broken, states=broken.states.astype(np.float32)))


def test_training_leaves_the_global_random_state_alone(train: Train, settings: CodebookSettings) -> None:
    before = torch.random.get_rng_state()
    train(settings.model_copy(update={"epochs": 1}))
    assert torch.equal(torch.random.get_rng_state(), before)
