"""MacroHFT's hyper-agent: blends the sub-agents' action values, helped by an episodic memory of recent values."""

from __future__ import annotations

import polars as pl
import torch
from torch import nn

from archetype_dagster.baselines.learning_market import TransitionBatches
from archetype_dagster.baselines.value_learning import VALIDATION_SCORE, next_values, stage_plan, teacher_divergence
from archetype_dagster.baselines.value_networks import BlendNetwork, OnlineAndTarget
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.rl.objectives import Parts
from archetype_dagster.rl.training_loop import Objective, Validate, maximise
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import IndexArray, Progress

_NEAREST = 1e-3


class EpisodicMemory(nn.Module):
    """A ring of training rows with the values they had when they were last learned from.

    It is state of the training alone: the fitted strategy does not hold it. Keys are encoded anew at each
    recall, so they never lag behind the encoder.

    Args:
        size: rows it holds.
        neighbours: nearest rows a value is recalled from.
    """

    rows: torch.Tensor
    values: torch.Tensor
    written: torch.Tensor

    def __init__(self, size: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.register_buffer("rows", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(size, 3, 3))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))

    @property
    def full(self) -> bool:
        """True once every place has been written; before, nothing is recalled."""
        return int(self.written) >= len(self.rows)

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Put rows (B,) and their values (B, 3, 3) in the places written longest ago."""
        kept, kept_values = rows[-len(self.rows) :], values[-len(self.rows) :]
        places = (self.written + torch.arange(len(kept), device=kept.device)) % len(self.rows)
        self.rows[places], self.values[places] = kept, kept_values
        self.written += len(kept)

    def recall(self, keys: torch.Tensor, remembered: torch.Tensor) -> torch.Tensor:
        """Values of the nearest remembered keys, weighted by 1 / (squared distance + 0.001).

        Args:
            keys: float32 (B, H), encoded states to look up.
            remembered: float32 (size, H), the encoded states of `rows`.

        Returns:
            float32 (B, 3, 3).
        """
        squared = keys.square().sum(1, keepdim=True) - 2 * keys @ remembered.T + remembered.square().sum(1)
        nearest, places = squared.clamp_min(0).topk(self.neighbours, largest=False)
        weights = 1 / (nearest + _NEAREST)
        weights = weights / weights.sum(dim=1, keepdim=True)
        return torch.einsum("bn,bnij->bij", weights, self.values[places])


class BlendTraining(nn.Module):
    """Everything of the hyper-agent's training that a resume point must hold."""

    def __init__(self, blend: BlendNetwork, memory: EpisodicMemory) -> None:
        super().__init__()
        self.blend, self.memory = OnlineAndTarget(blend), memory
        # A method, not the trunk itself, which would be registered a second time.
        self.encode = blend.trunk.encode


def blended(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum of sub-agents' values by weight for each held action: (B, 3, n) and (B, n, 3, 3) -> (B, 3, 3)."""
    return torch.einsum("bin,bnij->bij", weights, values)


def train_blend(
    training: BlendTraining,
    batches: TransitionBatches,
    agent_values: torch.Tensor,
    usable_rows: IndexArray,
    validate: Validate,
    settings: BaselineSettings,
    *,
    seed: int,
    resume: ResumePoint,
    progress: Progress,
) -> pl.DataFrame:
    """Learn the weights that blend frozen sub-agents.

    The loss is the double-Q error of the blended values, plus the squared distance to the recalled values
    once the memory is full, plus the divergence from the hindsight teacher.

    Args:
        training: the network with target and memory; holds the result.
        batches: the training split.
        agent_values: float32 (T, n, 3, 3) on the device, values of the sub-agents on every training row.
        usable_rows: int64, rows whose rewards are known.
        validate: metrics of the current weights, `VALIDATION_SCORE` among them.
        settings: budget and the method's settings.
        seed: seed of the run.
        resume: where to save the state.
        progress: told the steps done.

    Returns:
        the history, see `maximise`.
    """
    method, pair, memory = settings.macrohft, training.blend, training.memory
    rows_of_draw = torch.from_numpy(usable_rows)

    def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
        pair.follow(method.target_rate)
        rows = rows_of_draw[indices].to(batches.device)
        with torch.no_grad():
            after, after_values = batches.inputs[rows + 1], agent_values[rows + 1]
            worth = next_values(blended(pair(after), after_values), blended(pair.target(after), after_values))
            wanted = batches.rewards[rows] + settings.gamma * worth.unsqueeze(1)
            recalled = None
            if memory.full:
                keys, remembered = (training.encode(batches.inputs[chosen]) for chosen in (rows, memory.rows))
                recalled = memory.recall(keys, remembered)
            memory.write(rows, wanted)

        def objective() -> tuple[torch.Tensor, Parts]:
            values = blended(pair(batches.inputs[rows]), agent_values[rows])
            error = (values - wanted).square().mean()
            divergence = teacher_divergence(values, batches.teacher[rows], method.teacher_temperature)
            distance = torch.zeros_like(error) if recalled is None else (values - recalled).square().mean()
            loss = error + method.memory_weight * distance + method.teacher_weight * divergence
            return -loss, {"td_error": error, "memory_error": distance, "teacher_divergence": divergence}

        return objective

    plan = stage_plan("macrohft_blend", settings, method, share=1 - method.agents_share, horizons=len(usable_rows))
    return maximise(
        training,
        plan,
        prepare=prepare,
        validate=validate,
        score=VALIDATION_SCORE,
        seed=seed,
        resume=resume,
        progress=progress,
    )
