"""What the refiner makes of horizons' base actions, for each of the three actions a horizon may start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.market.dataset import HorizonBatch
from archetype_dagster.planning.adaptations import apply_override, legal_override_mask
from archetype_dagster.planning.rewards import horizon_rewards
from archetype_dagster.refinement.adapter import greedy_override, refinement_context
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.settings import OverrideRule
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, StateArray

_POSITIONS = np.arange(3, dtype=np.int8)


@dataclass(frozen=True)
class RefinedPlans:
    """n horizons of h bars, each from every action it may start from.

    Attributes:
        actions: int8 (n, 3, h), final actions (Eq. 6).
        steps: int64 (n, 3), step at which the refiner acts, -1 for none.
        directions: int8 (n, 3), -1 short, +1 long, 0 for none.
        context: float32 (n, 3, h, C), what the refiner saw; None without one.
        logits: float32 (n, 3, h, 3) over [short, nothing, long]; None without a refiner.
    """

    actions: ActionArray
    steps: IndexArray
    directions: ActionArray
    context: StateArray | None
    logits: NDArray[np.float32] | None


def unrefined_plans(base: ActionArray) -> RefinedPlans:
    """The base actions int8 (n, h) as they are."""
    n, h = base.shape
    bases = np.broadcast_to(base[:, np.newaxis], (n, 3, h))
    return RefinedPlans(bases, np.full((n, 3), -1), np.zeros((n, 3), dtype=np.int8), None, None)


def refined_plans(
    refiner: Refiner,
    batch: HorizonBatch,
    encoded: StateArray,
    embeddings: StateArray,
    base: ActionArray,
    *,
    max_position: float,
    delay: int,
    override: OverrideRule,
) -> RefinedPlans:
    """The base actions with the refiner's override.

    Args:
        refiner: the frozen refiner.
        batch: the n horizons.
        encoded: float32 (n, h, E), what `Refiner.encoded` made of their rows.
        embeddings: float32 (n, D), those of their codes.
        base: int8 (n, h), the actions decoded from them.
        max_position: m, base units.
        delay: execution delay in bars.
        override: how long an override lasts.
    """
    n, h = base.shape
    bases = np.broadcast_to(base[:, np.newaxis], (n, 3, h))
    initial = np.broadcast_to(_POSITIONS, (n, 3))
    rewards = _rewards_from_each(bases, batch, max_position)
    context = refinement_context(
        np.repeat(embeddings, 3, axis=0),
        bases.reshape(3 * n, h),
        rewards.reshape(3 * n, h),
        np.repeat(max_position * batch.mark[:, 0], 3),
        delay=delay,
    ).reshape(n, 3, h, -1)
    logits = refiner.judge(np.repeat(encoded[:, np.newaxis], 3, axis=1), context)
    legal = legal_override_mask(bases, initial_action=initial)
    steps, directions = greedy_override(logits.reshape(3 * n, h, 3), legal.reshape(3 * n, h, 2))
    steps, directions = steps.reshape(n, 3), directions.reshape(n, 3)
    return RefinedPlans(apply_override(bases, steps, directions, override), steps, directions, context, logits)


def _rewards_from_each(bases: ActionArray, batch: HorizonBatch, max_position: float) -> FloatArray:
    """Step rewards (n, 3, h) of the base actions (n, 3, h) from each action a horizon may start from."""
    return horizon_rewards(
        bases,
        batch.mark[:, np.newaxis],
        batch.costs[:, np.newaxis],
        max_position=max_position,
        initial_action=np.broadcast_to(_POSITIONS, bases.shape[:2]),
    )
