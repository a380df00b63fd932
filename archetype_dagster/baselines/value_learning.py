"""Double Q-learning with a hindsight teacher on whole tables of transitions.

Every pass backs up all nine (held, next) pairs of each row of a batch: what a replay buffer would hold after
endless exploration, without the exploration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from archetype_dagster.baselines.learning_market import LearningMarket, TransitionBatches, WeightedRows
from archetype_dagster.baselines.stages import StagedTraining
from archetype_dagster.baselines.transitions import rewards_from_each, rolled_from_each
from archetype_dagster.baselines.value_networks import OnlineAndTarget, in_blocks
from archetype_dagster.rl.training_loop import Objective, TrainingPlan, maximise
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.settings.hierarchical import ValueLearningSettings
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, Progress, StateArray

VALIDATION_SCORE: Final = "validation_return"


def next_values(online: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Double-Q value of a state for each held action, picked online and valued by the target: (B, 3, n) -> (B, 3)."""
    return target.gather(-1, online.argmax(dim=-1, keepdim=True)).squeeze(-1)


def teacher_divergence(values: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Mean over states and held actions of KL(softmax(Q* / T) || softmax(Q / T)); both (B, 3, 3)."""
    wanted = torch.log_softmax(teacher / temperature, dim=-1)
    given = torch.log_softmax(values / temperature, dim=-1)
    return (wanted.exp() * (wanted - given)).sum(dim=-1).mean()


def greedy_actions(network: nn.Module, inputs: StateArray, device: torch.device) -> ActionArray:
    """The best-valued choice for each held action, int8 (T, 3); ties go to the lowest."""
    choices = in_blocks(lambda block: network(block).argmax(dim=-1).to("cpu", torch.int8), inputs, device)
    return choices.numpy()


def chunk_returns(network: nn.Module, market: LearningMarket, rows: IndexArray, device: torch.device) -> FloatArray:
    """What the greedy policy earns on chunks of rows (C, bars) entered with each action: float64 (C, 3), percent."""
    maps = greedy_actions(network, market.inputs[rows.reshape(-1)], device).reshape(*rows.shape, 3)
    actions = rolled_from_each(maps[:, np.newaxis])
    return np.asarray(rewards_from_each(market.table.percent[rows], actions).sum(axis=2))


def stage_plan(
    phase: str,
    settings: BaselineSettings,
    method: ValueLearningSettings,
    *,
    share: float,
    horizons: int,
    horizon_bars: int = 1,
) -> TrainingPlan:
    """The plan of a stage that gets `share` of the budget and of the validations, two of them at least."""
    return TrainingPlan(
        phase=phase,
        num_horizons=horizons,
        horizon_bars=horizon_bars,
        total_steps=math.ceil(share * settings.total_steps),
        batch_size=max(method.batch_size // horizon_bars, 1),
        passes=1,
        evaluations=max(math.ceil(share * settings.evaluations), 2),
        learning_rate=settings.learning_rate,
    )


@dataclass(frozen=True)
class AgentTraining:
    """What the agents of a method share.

    Attributes:
        train: training split.
        validation: validation split.
        batches: the training split's transitions on the device.
        settings: budget, discount, step size.
        method: batch, target network, teacher.
        stages: where finished agents are kept.
        seed: seed of the run.
        progress: told the steps done.
    """

    train: LearningMarket
    validation: LearningMarket
    batches: TransitionBatches
    settings: BaselineSettings
    method: ValueLearningSettings
    stages: StagedTraining
    seed: int
    progress: Progress

    def run(
        self,
        name: str,
        network: nn.Module,
        *,
        share: float,
        train_weights: FloatArray,
        validation_weights: FloatArray,
    ) -> None:
        """Train an agent on the chunks it is meant for and keep its best on such chunks of the validation split.

        Its score is the mean return of a chunk, percent of notional, weighted by the chunks' weights and over
        the three actions a chunk may be entered with.

        Args:
            name: name of the stage.
            network: float32 (B, F') -> (B, 3, 3); holds the result.
            share: part of the budget.
            train_weights: float64 (C,), how often rows of each training chunk are drawn.
            validation_weights: float64 (C',), of each validation chunk.
        """
        pair = OnlineAndTarget(network).to(self.batches.device)
        rows = self.train.chunks.rows
        sampler = WeightedRows(rows.reshape(-1), np.repeat(train_weights, rows.shape[1]))
        watched = validation_weights > 0
        watched_rows, watched_weights = self.validation.chunks.rows[watched], validation_weights[watched]

        def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
            pair.follow(self.method.target_rate)
            drawn = sampler.draw(indices, generator).to(self.batches.device)
            return lambda: self._objective(pair, drawn)

        def validate() -> dict[str, float]:
            earned = chunk_returns(pair, self.validation, watched_rows, self.batches.device).mean(axis=1)
            return {VALIDATION_SCORE: float(np.average(earned, weights=watched_weights))}

        plan = stage_plan(name, self.settings, self.method, share=share, horizons=len(sampler))
        self.stages.run(
            name,
            pair,
            lambda point: maximise(
                pair,
                plan,
                prepare=prepare,
                validate=validate,
                score=VALIDATION_SCORE,
                seed=self.seed,
                resume=point,
                progress=self.progress,
            ),
        )

    def _objective(self, pair: OnlineAndTarget, rows: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with torch.no_grad():
            after = self.batches.inputs[rows + 1]
            worth = next_values(pair(after), pair.target(after))
            wanted = self.batches.rewards[rows] + self.settings.gamma * worth.unsqueeze(1)
        values = pair(self.batches.inputs[rows])
        error = (values - wanted).square().mean()
        divergence = teacher_divergence(values, self.batches.teacher[rows], self.method.teacher_temperature)
        return -(error + self.method.teacher_weight * divergence), {"td_error": error, "teacher_divergence": divergence}
