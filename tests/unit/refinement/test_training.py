import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import apply_override, horizon_rewards, legal_override_mask
from archetype_dagster.refinement import Refiner, greedy_override, refinement_context, train_refiner
from archetype_dagster.refinement.table import build_refinement_table
from archetype_dagster.refinement.training import override_gains, spread_evenly
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection import Selector, SelectorNetwork
from archetype_dagster.settings import CodebookSettings, RefinementSettings
from archetype_dagster.types import NoProgress

CPU = torch.device("cpu")
NO_RESUME = ResumePoint(None, "")
Split = Callable[..., MarketDataset]
MakeCodebook = Callable[..., Codebook]
SMALL = RefinementSettings(
    override="hold",
    beta_2=0.1,
    total_steps=6 * 32 * 120,
    batch_size=32,
    learning_rate=5e-3,
    hidden_size=16,
    evaluations=4,
)


def random_selector(num_codes: int = 4) -> Selector:
    with seeded_initialisation(0, "selector"):
        network = SelectorNetwork(4, num_codes, (8,))
    return Selector(network.eval().requires_grad_(False), pl.DataFrame())


def train(
    split: Split,
    codebook: Codebook,
    settings: RefinementSettings,
    *,
    seed: int = 0,
    resume: ResumePoint = NO_RESUME,
) -> Refiner:
    return train_refiner(
        split(),
        split(seed=1),
        codebook,
        random_selector(),
        settings,
        beta_1=0.5,
        seed=seed,
        device=CPU,
        resume=resume,
        progress=NoProgress(),
    )


def weights(module: torch.nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_learns_overrides_that_pay_on_unseen_bars(
    learnable_split: Split, random_codebook: MakeCodebook, objective: str
) -> None:
    settings = SMALL.model_copy(update={"objective": objective, "total_steps": 2 * SMALL.total_steps})
    codebook, unseen = random_codebook(), learnable_split(seed=2)
    refiner = train(learnable_split, codebook, settings)
    table = build_refinement_table(
        unseen,
        unseen.horizon_starts(6),
        codebook,
        random_selector(),
        settings,
        beta_1=0.5,
        progress=NoProgress(),
    )
    everything = np.arange(len(table))
    states = unseen.horizons(table.starts).states
    steps, directions = greedy_override(refiner.logits(states, table.context(everything)), table.legal)
    gains = override_gains(table, everything, steps, directions)
    assert (steps >= 0).mean() > 0.2
    assert gains.mean() > 0.2


@pytest.mark.parametrize("delay", [0, 1])
def test_table_equals_the_parts_a_live_policy_would_use(
    learnable_split: Split, random_codebook: MakeCodebook, delay: int
) -> None:
    dataset, codebook, selector = learnable_split(delay=delay), random_codebook(), random_selector()
    starts = dataset.horizon_starts(5)
    table = build_refinement_table(dataset, starts, codebook, selector, SMALL, beta_1=0.5, progress=NoProgress())
    batch = dataset.horizons(starts)
    codes = selector.choose(batch.states[:, 0])
    base, _ = codebook.decode(batch.states, codes)
    rewards = horizon_rewards(base, batch.mark, batch.costs, max_position=dataset.max_position)
    notional = dataset.max_position * batch.mark[:, 0]
    embedding = codebook.quantizer.codes.detach().numpy()[codes]
    context = refinement_context(embedding, base, rewards, notional, delay=delay)
    np.testing.assert_array_equal(table.base_actions, base)
    np.testing.assert_array_equal(table.context(np.arange(len(table))), context)
    np.testing.assert_array_equal(table.legal, legal_override_mask(base))
    np.testing.assert_allclose(table.base_return, 100 * rewards.sum(axis=1) / notional, atol=1e-10)


def test_gains_equal_replaying_the_overridden_actions(learnable_split: Split, random_codebook: MakeCodebook) -> None:
    dataset = learnable_split()
    starts = dataset.horizon_starts(5)
    table = build_refinement_table(
        dataset, starts, random_codebook(), random_selector(), SMALL, beta_1=0.5, progress=NoProgress()
    )
    logits = np.random.default_rng(0).normal(size=(*table.base_actions.shape, 3)).astype(np.float32)
    steps, directions = greedy_override(logits, table.legal)
    final = apply_override(table.base_actions, steps, directions, "hold")
    batch = dataset.horizons(starts)
    earned = horizon_rewards(final, batch.mark, batch.costs, max_position=dataset.max_position).sum(axis=1)
    expected = 100 * earned / (dataset.max_position * batch.mark[:, 0]) - table.base_return
    assert (steps >= 0).any()
    gains = override_gains(table, np.arange(len(table)), steps, directions)
    np.testing.assert_allclose(gains, expected, rtol=0, atol=1e-6)


def test_validation_never_ends_below_the_base_policy(learnable_split: Split, random_codebook: MakeCodebook) -> None:
    history = train(learnable_split, random_codebook(), SMALL).history
    assert history["validation_override_rate"].to_list()[0] == 0
    assert history["validation_return"].to_list()[0] == history["validation_base_return"].to_list()[0]
    assert history["validation_return"].max() >= history["validation_base_return"].to_list()[0]
    assert history["steps"].to_list()[-1] == SMALL.total_steps


def test_codebook_and_selector_stay_frozen(learnable_split: Split, random_codebook: MakeCodebook) -> None:
    codebook, selector = random_codebook(), random_selector()
    modules = (codebook.encoder, codebook.quantizer, codebook.decoder, selector.network)
    before = [weights(module) for module in modules]
    train_refiner(
        learnable_split(),
        learnable_split(seed=1),
        codebook,
        selector,
        SMALL,
        beta_1=0.5,
        seed=0,
        device=CPU,
        resume=NO_RESUME,
        progress=NoProgress(),
    )
    assert [weights(module) for module in modules] == before


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_same_seed_same_bytes_and_other_seed_other_bytes(
    learnable_split: Split, random_codebook: MakeCodebook, objective: str
) -> None:
    settings = SMALL.model_copy(update={"objective": objective, "total_steps": 6 * 32 * 8})
    first, second = (train(learnable_split, random_codebook(), settings) for _ in range(2))
    assert weights(first.network) == weights(second.network)
    assert first.history.equals(second.history)
    other = train(learnable_split, random_codebook(), settings, seed=1)
    assert other.history["objective"].to_list() != first.history["objective"].to_list()


def test_saved_refiner_answers_the_same(learnable_split: Split, random_codebook: MakeCodebook, tmp_path: Path) -> None:
    refiner = train(learnable_split, random_codebook(), SMALL)
    refiner.save(tmp_path)
    loaded = Refiner.load(tmp_path)
    rng = np.random.default_rng(0)
    states, context = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    np.testing.assert_array_equal(loaded.logits(states, context), refiner.logits(states, context))
    assert loaded.history.equals(refiner.history)


def test_training_starts_are_spread_over_the_whole_split_and_never_repeated() -> None:
    starts = np.arange(0, 1000, 2)
    chosen = spread_evenly(starts, 7)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 998, 7)
    assert len(np.unique(spread_evenly(starts, 499))) == 499
    np.testing.assert_array_equal(spread_evenly(starts, 10_000), starts)


KILLED = """
import os, runpy, signal, sys
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.types import NoProgress
from pathlib import Path

class KillInTraining(NoProgress):
    def start(self, description, total):
        self.left = 2 if description == "refinement" else 10**9
    def advance(self, completed, metrics=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

shared = runpy.run_path(sys.argv[1])
tests = runpy.run_path(sys.argv[2])
tests["train"].__globals__["NoProgress"] = KillInTraining
resume = ResumePoint(Path(sys.argv[3]), "key")
tests["train"](shared["learnable_split"], shared["random_codebook"](), tests["SMALL"], resume=resume)
"""


def test_training_goes_on_after_kill_9_and_ends_with_the_same_bytes(
    learnable_split: Split, random_codebook: MakeCodebook, tmp_path: Path
) -> None:
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
    assert 0 < saved[1]["updates_done"] < 120
    resumed = train(learnable_split, random_codebook(), SMALL, resume=resume)
    whole = train(learnable_split, random_codebook(), SMALL)
    assert weights(resumed.network) == weights(whole.network)
    assert resumed.history.equals(whole.history)


def test_a_codebook_without_codes_is_refused(learnable_split: Split) -> None:
    codebook = Codebook.untrained(4, 6, CodebookSettings(embedding="continuous", code_dim=3, hidden_size=8))
    with pytest.raises(ArtifactError, match=r"'continuous' has no codes.*refinement"):
        train(learnable_split, codebook, SMALL)
