import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.selection import (
    ArchetypeReturns,
    ReturnsTable,
    Selector,
    build_archetype_returns,
    train_selector,
)
from archetype_dagster.settings import PlannerSettings, SelectionSettings
from archetype_dagster.types import NoProgress

CPU = torch.device("cpu")
NO_RESUME = ResumePoint(None, "")
Split = Callable[..., MarketDataset]
SMALL = SelectionSettings(
    alpha=0.1, total_steps=6 * 32 * 200, batch_size=32, learning_rate=3e-3, hidden_sizes=(16,), evaluations=4
)


def rewarded(dataset: MarketDataset) -> ReturnsTable:
    """Code 0 earns where the first feature is negative, code 1 where it is positive, code 2 never."""
    starts = dataset.horizon_starts(3)
    edge = np.sign(dataset.states[starts, 0]).astype(np.float64)
    returns = np.stack([-edge, edge, np.zeros(len(edge))], axis=1)
    return ReturnsTable(starts, dataset.timestamps[starts], returns, (edge > 0).astype(np.int64))


def train(split: Split, settings: SelectionSettings, *, seed: int = 0, resume: ResumePoint = NO_RESUME) -> Selector:
    training, validation = split(), split(seed=1)
    table = ArchetypeReturns(rewarded(training), rewarded(validation))
    return train_selector(
        training,
        validation,
        table,
        settings,
        horizon_bars=6,
        seed=seed,
        device=CPU,
        resume=resume,
        progress=NoProgress(),
    )


def weights(selector: Selector) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in selector.network.state_dict().items()}


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_learns_to_choose_the_code_that_pays(learnable_split: Split, objective: str) -> None:
    selector = train(learnable_split, SMALL.model_copy(update={"objective": objective}))
    unseen = learnable_split(seed=2)
    returns = rewarded(unseen)
    choice = selector.choose(unseen.states[returns.starts])
    assert choice.dtype == np.int64
    assert returns.returns[np.arange(len(choice)), choice].mean() > 0.9


def test_the_label_alone_teaches_where_returns_say_nothing(learnable_split: Split) -> None:
    training, validation = learnable_split(), learnable_split(seed=1)
    parts = [rewarded(dataset) for dataset in (training, validation)]
    silent = [ReturnsTable(part.starts, part.timestamps, 0 * part.returns, part.labels) for part in parts]
    settings = SMALL.model_copy(update={"alpha": 1.0})
    selector = train_selector(
        training,
        validation,
        ArchetypeReturns(*silent),
        settings,
        horizon_bars=6,
        seed=0,
        device=CPU,
        resume=NO_RESUME,
        progress=NoProgress(),
    )
    assert selector.history["validation_kl"].to_list()[-1] < 0.5 * selector.history["validation_kl"].to_list()[0]


def test_history_has_one_row_per_validation_and_counts_h_steps_per_horizon(learnable_split: Split) -> None:
    history = train(learnable_split, SMALL).history
    assert history["steps"].to_list() == [0, *(6 * 32 * 50 * block for block in range(1, 5))]
    assert {"expected_return", "kl", "entropy", "objective", "validation_return"} <= set(history.columns)
    assert history["objective"].to_list()[0] is None


def test_ppo_counts_each_pass_over_its_rollout(learnable_split: Split) -> None:
    history = train(learnable_split, SMALL.model_copy(update={"objective": "ppo"})).history
    assert history["updates"].to_list()[-1] == 200 / SMALL.ppo.epochs
    assert history["steps"].to_list()[-1] == SMALL.total_steps


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_same_seed_same_bytes_and_other_seed_other_bytes(learnable_split: Split, objective: str) -> None:
    settings = SMALL.model_copy(update={"objective": objective, "total_steps": 6 * 32 * 8})
    first, second = train(learnable_split, settings), train(learnable_split, settings)
    assert weights(first) == weights(second)
    assert first.history.equals(second.history)
    assert weights(train(learnable_split, settings, seed=1)) != weights(first)


def test_a_hundred_updates_leave_the_codebook_as_it_was(
    learnable_split: Split, random_codebook: Callable[..., Codebook]
) -> None:
    codebook, training, validation = random_codebook(), learnable_split(), learnable_split(seed=1)
    modules = (codebook.encoder, codebook.quantizer, codebook.decoder)

    def content() -> list[bytes]:
        return [tensor.numpy().tobytes() for module in modules for tensor in module.state_dict().values()]

    before = content()
    table = build_archetype_returns(
        training,
        validation,
        codebook,
        PlannerSettings(horizon_bars=6),
        SMALL,
        device=CPU,
        progress=NoProgress(),
    )
    train_selector(
        training,
        validation,
        table,
        SMALL.model_copy(update={"total_steps": 6 * 32 * 100}),
        horizon_bars=6,
        seed=0,
        device=CPU,
        resume=NO_RESUME,
        progress=NoProgress(),
    )
    assert content() == before


def test_training_leaves_the_global_random_state_alone(learnable_split: Split) -> None:
    before = torch.random.get_rng_state()
    train(learnable_split, SMALL.model_copy(update={"objective": "ppo", "total_steps": 6 * 32 * 8}))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_saved_selector_chooses_the_same(learnable_split: Split, tmp_path: Path) -> None:
    selector = train(learnable_split, SMALL)
    selector.save(tmp_path)
    loaded = Selector.load(tmp_path)
    states = learnable_split(seed=2).states
    np.testing.assert_array_equal(loaded.logits(states), selector.logits(states))
    assert loaded.history.equals(selector.history)
    assert {path.name for path in tmp_path.iterdir()} == {"selector.safetensors", "history.parquet"}


def test_ties_choose_the_lowest_code(learnable_split: Split) -> None:
    selector = train(learnable_split, SMALL.model_copy(update={"total_steps": 192}))
    torch.nn.init.zeros_(selector.network.actor.weight)
    torch.nn.init.zeros_(selector.network.actor.bias)
    assert selector.choose(np.ones((3, 4), dtype=np.float32)).tolist() == [0, 0, 0]


def test_a_table_of_another_dataset_is_refused(learnable_split: Split) -> None:
    training, validation = learnable_split(), learnable_split(seed=1, segments=(100,))
    table = ArchetypeReturns(rewarded(training), rewarded(learnable_split(seed=1)))
    with pytest.raises(ArtifactError, match="another dataset"):
        train_selector(
            training,
            validation,
            table,
            SMALL,
            horizon_bars=6,
            seed=0,
            device=CPU,
            resume=NO_RESUME,
            progress=NoProgress(),
        )


KILLED = """
import os, runpy, signal, sys
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.types import NoProgress
from pathlib import Path

class KillAfterTwo(NoProgress):
    count = 0
    def advance(self, completed, metrics=None):
        self.count += 1
        if self.count == 2:
            os.kill(os.getpid(), signal.SIGKILL)

split = runpy.run_path(sys.argv[1])["learnable_split"]
tests = runpy.run_path(sys.argv[2])
tests["train"].__globals__["NoProgress"] = KillAfterTwo
tests["train"](split, tests["SMALL"], resume=ResumePoint(Path(sys.argv[3]), "key"))
"""


def test_training_goes_on_after_kill_9_and_ends_with_the_same_bytes(learnable_split: Split, tmp_path: Path) -> None:
    state = tmp_path / "resume.safetensors"
    conftest = Path(__file__).parents[1] / "conftest.py"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(conftest), __file__, str(state)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    resume = ResumePoint(state, "key")
    saved = resume.load()
    assert saved is not None
    assert 0 < saved[1]["updates_done"] < 200
    resumed, whole = train(learnable_split, SMALL, resume=resume), train(learnable_split, SMALL)
    assert weights(resumed) == weights(whole)
    assert resumed.history.equals(whole.history)
