"""The loop both phases train with: a budget of environment steps, a validation schedule, the best kept.

Every random draw is a function of the seed and the number of the update, so a loop that goes on from a
resume point makes exactly the updates the uninterrupted one would have made.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import polars as pl
import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint, pack_training_state, unpack_training_state
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.rl.objectives import Parts
from archetype_dagster.seeding import seeded_initialisation, torch_generator
from archetype_dagster.settings import RefinementSettings, SelectionSettings
from archetype_dagster.types import Progress

Objective = Callable[[], tuple[torch.Tensor, Parts]]
Prepare = Callable[[torch.Tensor, torch.Generator], Objective]
Validate = Callable[[], dict[str, float]]


def batch_passes(settings: SelectionSettings | RefinementSettings) -> int:
    """Gradient passes over each batch: one where the objective is exact, PPO's epochs where it is sampled."""
    return 1 if settings.objective == "expected" else settings.ppo.epochs


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train and when to validate.

    Attributes:
        phase: name of the phase; names its random streams and its task in the progress display.
        num_horizons: training horizons to draw from, each seen once per epoch.
        horizon_bars: h; a gradient pass over n horizons counts n * h steps.
        total_steps: budget in steps; the last update may exceed it by less than one batch.
        batch_size: horizons per update, at most `num_horizons`.
        passes: gradient passes over each batch.
        evaluations: validation passes spread evenly over the updates, besides the one before the first.
        learning_rate: Adam's step size.
    """

    phase: str
    num_horizons: int
    horizon_bars: int
    total_steps: int
    batch_size: int
    passes: int
    evaluations: int
    learning_rate: float

    @classmethod
    def of(
        cls, phase: str, settings: SelectionSettings | RefinementSettings, *, num_horizons: int, horizon_bars: int
    ) -> Self:
        """The plan that a phase's settings ask for."""
        return cls(
            phase=phase,
            num_horizons=num_horizons,
            horizon_bars=horizon_bars,
            total_steps=settings.total_steps,
            batch_size=settings.batch_size,
            passes=batch_passes(settings),
            evaluations=settings.evaluations,
            learning_rate=settings.learning_rate,
        )

    @property
    def horizons_per_update(self) -> int:
        """Horizons in one batch."""
        return min(self.batch_size, self.num_horizons)

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one update counts."""
        return self.horizons_per_update * self.horizon_bars * self.passes

    @property
    def updates(self) -> int:
        """Batches until the budget is spent."""
        return math.ceil(self.total_steps / self.steps_per_update)

    @property
    def evaluation_points(self) -> tuple[int, ...]:
        """Numbers of updates after which to validate: 0, the last, and those between, in order."""
        points = {round(self.updates * block / self.evaluations) for block in range(self.evaluations + 1)}
        return tuple(sorted(points))

    def batch(self, update: int, *, seed: int) -> torch.Tensor:
        """Horizon numbers of one update: the next stretch of an endless row of seeded permutations.

        Returns int64 (horizons_per_update,).
        """
        first, size, n = update * self.horizons_per_update, self.horizons_per_update, self.num_horizons
        epochs = range(first // n, (first + size - 1) // n + 1)
        orders = [torch.randperm(n, generator=torch_generator(seed, self.phase, "order", epoch)) for epoch in epochs]
        offset = first - epochs[0] * n
        return torch.cat(orders)[offset : offset + size]


@dataclass
class _State:
    updates_done: int
    best_score: float
    history: list[dict[str, Any]]


def maximise(
    network: nn.Module,
    plan: TrainingPlan,
    *,
    prepare: Prepare,
    validate: Validate,
    score: str,
    seed: int,
    resume: ResumePoint,
    progress: Progress,
) -> pl.DataFrame:
    """Train `network` by gradient ascent and leave the weights of its best validation in it, frozen.

    The untrained network is validated too, so training never ends with something worse on validation
    than it began with. Equal scores keep the earlier weights.

    Args:
        network: the module to train, on its device.
        plan: budget and schedule.
        prepare: from a batch of horizon numbers and the update's generator to the objective that
            each gradient pass maximises.
        validate: metrics of the current weights.
        score: the metric to keep the best of.
        seed: seed of the run.
        resume: where the state is saved after each validation.
        progress: told the steps done so far after each validation.

    Returns:
        one row per validation: `updates`, `steps`, the validation metrics and the training parts
        averaged over the updates since the row before (null in the first row).

    Raises:
        ArchetypeError: the objective is no longer finite.
    """
    best = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=plan.learning_rate)
    modules = {"network": network, "best": best}
    state = _restore(resume, modules, optimizer)
    progress.start(plan.phase, plan.total_steps)
    for point in plan.evaluation_points:
        if point <= state.updates_done:
            continue
        # Dropout draws from torch's global stream; blocks begin where a resumed training begins.
        with seeded_initialisation(seed, plan.phase, "dropout", point, device=next(network.parameters()).device):
            parts = _train_until(point, state.updates_done, network, optimizer, plan, prepare, seed)
        network.eval()
        metrics = {**parts, **validate()}
        if metrics[score] > state.best_score:
            state.best_score = metrics[score]
            best.load_state_dict(network.state_dict())
        state.updates_done = point
        state.history.append({"updates": point, "steps": point * plan.steps_per_update, **metrics})
        resume.save(pack_training_state(modules, optimizer), vars(state))
        progress.advance(min(point * plan.steps_per_update, plan.total_steps), metrics)
    network.load_state_dict(best.state_dict())
    network.eval().requires_grad_(False)
    progress.finish()
    history = pl.from_dicts(state.history, infer_schema_length=None)
    # A resume point sorts its keys, so the order of columns must not come from them.
    return history.select("updates", "steps", *sorted(set(history.columns) - {"updates", "steps"}))


@contextmanager
def acting(network: nn.Module) -> Iterator[None]:
    """Run a network in training as it runs afterwards: without dropout and without gradients."""
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train()


def _restore(resume: ResumePoint, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> _State:
    saved = resume.load()
    if saved is None:
        return _State(updates_done=-1, best_score=-math.inf, history=[])
    tensors, facts = saved
    unpack_training_state(tensors, modules, optimizer)
    return _State(facts["updates_done"], facts["best_score"], facts["history"])


def _train_until(
    last: int,
    first: int,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
    prepare: Prepare,
    seed: int,
) -> dict[str, float]:
    network.train()
    recorded: list[Parts] = []
    for update in range(max(first, 0), last):
        objective = prepare(plan.batch(update, seed=seed), torch_generator(seed, plan.phase, "draws", update))
        for _ in range(plan.passes):
            value, parts = objective()
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(-value)
            optimizer.step()
            recorded.append({"objective": value.detach(), **{name: part.detach() for name, part in parts.items()}})
    if not recorded:
        return {}
    means = {name: torch.stack([parts[name] for parts in recorded]).mean().item() for name in recorded[0]}
    if not math.isfinite(means["objective"]):
        raise ArchetypeError(
            f"{plan.phase} diverged between updates {first} and {last}: its objective is {means['objective']}; "
            "lower the learning rate"
        )
    return means
