from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.rl.training_loop import Objective, TrainingPlan, maximise
from archetype_dagster.types import NoProgress

PLAN = TrainingPlan(
    phase="test",
    num_horizons=10,
    horizon_bars=3,
    total_steps=100,
    batch_size=4,
    passes=2,
    evaluations=3,
    learning_rate=0.1,
)


class StopAfter(NoProgress):
    """Raises after some evaluations, like a user who interrupts."""

    def __init__(self, evaluations: int) -> None:
        self.left = evaluations

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def train(
    network: nn.Linear, resume: ResumePoint, progress: NoProgress, scores: list[float] | None = None
) -> pl.DataFrame:
    """Fit a line to noisy targets; noise comes from the update's generator, as in PPO."""
    inputs = torch.linspace(-1, 1, PLAN.num_horizons).unsqueeze(-1)

    def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
        noise = torch.randn(len(indices), 1, generator=generator)

        def objective() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            error = (network(inputs[indices]) - 2 * inputs[indices] - noise).square().mean()
            return -error, {"error": error}

        return objective

    def validate() -> dict[str, float]:
        if scores is not None:
            return {"score": scores.pop(0)}
        return {"score": -((network.weight.item() - 2.0) ** 2)}

    return maximise(
        network, PLAN, prepare=prepare, validate=validate, score="score", seed=3, resume=resume, progress=progress
    )


def fresh_network() -> nn.Linear:
    network = nn.Linear(1, 1)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def test_budget_counts_every_gradient_pass_over_n_horizons_as_n_h_steps() -> None:
    assert PLAN.steps_per_update == 4 * 3 * 2
    assert PLAN.updates == 5
    assert PLAN.evaluation_points == (0, 2, 3, 5)


def test_batches_are_consecutive_stretches_of_seeded_permutations() -> None:
    drawn = torch.cat([PLAN.batch(update, seed=7) for update in range(5)])
    assert sorted(drawn[:10].tolist()) == list(range(10))
    assert sorted(drawn[10:].tolist()) == list(range(10))
    assert torch.equal(drawn[4:8], PLAN.batch(1, seed=7))
    assert not torch.equal(drawn[:4], PLAN.batch(0, seed=8))


def test_a_batch_is_never_larger_than_the_training_set() -> None:
    small = TrainingPlan("test", 3, 2, 60, batch_size=256, passes=1, evaluations=1, learning_rate=0.1)
    assert sorted(small.batch(5, seed=0).tolist()) == [0, 1, 2]
    assert small.updates == 10


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_resumed_training_ends_bit_identical(tmp_path: Path, stop_after: int) -> None:
    whole = fresh_network()
    history = train(whole, ResumePoint(None, ""), NoProgress())
    resume = ResumePoint(tmp_path / "resume.safetensors", "key")
    with pytest.raises(KeyboardInterrupt):
        train(fresh_network(), resume, StopAfter(stop_after))
    resumed = fresh_network()
    resumed_history = train(resumed, resume, NoProgress())
    assert resumed.weight.item() == whole.weight.item()
    assert resumed.bias.item() == whole.bias.item()
    assert resumed_history.equals(history)


def test_state_saved_under_another_key_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(fresh_network(), ResumePoint(path, "other settings"), StopAfter(3))
    whole, other = fresh_network(), fresh_network()
    train(whole, ResumePoint(None, ""), NoProgress())
    train(other, ResumePoint(path, "these settings"), NoProgress())
    assert other.weight.item() == whole.weight.item()


def test_best_validation_is_kept_and_ties_keep_the_earlier_weights() -> None:
    best_at_second, until_second = fresh_network(), fresh_network()
    train(best_at_second, ResumePoint(None, ""), NoProgress(), scores=[0.0, 5.0, 5.0, 1.0])
    train(until_second, ResumePoint(None, ""), NoProgress(), scores=[0.0, 5.0, -1.0, -1.0])
    untrained = fresh_network()
    train(untrained, ResumePoint(None, ""), NoProgress(), scores=[9.0, 5.0, 5.0, 1.0])
    assert best_at_second.weight.item() == until_second.weight.item() != 0
    assert untrained.weight.item() == 0
    assert not untrained.weight.requires_grad


def test_divergence_is_an_error_that_names_the_phase() -> None:
    network = fresh_network()
    nn.init.constant_(network.weight, torch.nan)
    with pytest.raises(ArchetypeError, match="test diverged between updates 0 and 2"):
        train(network, ResumePoint(None, ""), NoProgress(), scores=[0.0] * 4)
