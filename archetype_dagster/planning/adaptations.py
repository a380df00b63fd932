"""What each single override of a base plan would earn, and which are the best in hindsight (Eq. 7).

Everything is a closed form over the whole (step, direction) table; no adapted plan is ever replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.planning.inputs import action_array, batch_blocks, price_arrays, require_finite
from archetype_dagster.planning.overrides import OVERRIDE_TARGETS, apply_override, legal_override_mask, override_ends
from archetype_dagster.planning.rewards import previous_actions, trade_table_offsets, trading_losses
from archetype_dagster.settings import OverrideRule
from archetype_dagster.types import FLAT, ActionArray, BoolArray, FloatArray, IndexArray

__all__ = [
    "AdaptationTable",
    "Adaptations",
    "adaptation_returns",
    "apply_override",
    "legal_override_mask",
    "rank_adaptations",
]


@dataclass(frozen=True)
class AdaptationTable:
    """What every adaptation of B base plans of h steps would earn; direction 0 is short, 1 is long.

    Attributes:
        returns: float64 (B, h, 2), undiscounted return of the whole horizon with that one override,
            quote units; -inf where it is illegal.
        legal: bool (B, h, 2), Eq. (6) and not a no-op.
        base_return: float64 (B,), return of the base plan, quote units.
        base_rewards: float64 (B, h), step rewards of the base plan, quote units.
    """

    returns: FloatArray
    legal: BoolArray
    base_return: FloatArray
    base_rewards: FloatArray


@dataclass(frozen=True)
class Adaptations:
    """The best adaptations of B base plans, best first (Eq. 7).

    Attributes:
        steps: int64 (B, top), step tau of the override; -1 where fewer legal adaptations exist.
        directions: int8 (B, top), -1 short, +1 long; 0 where fewer exist.
        returns: float64 (B, top), return of the whole horizon, quote units; -inf where fewer exist.
        base_return: float64 (B,), return without an override, quote units.
    """

    steps: IndexArray
    directions: ActionArray
    returns: FloatArray
    base_return: FloatArray


def adaptation_returns(
    base_actions: ArrayLike,
    mark: ArrayLike,
    costs: ArrayLike,
    *,
    max_position: float,
    override: OverrideRule = "step",
    initial_action: ArrayLike = FLAT,
) -> AdaptationTable:
    """The whole-horizon return of each single override of each base plan (the R of Eq. 7 and 8).

    An override at tau replaces the base action on the bars [tau, end), where end is tau + 1 (`step`) or the
    base's next trade (`hold`), so it changes the return by the position difference times p_end - p_tau,
    less the differences of the trading losses at tau and at end. A position still overridden at the
    horizon's end is carried out of it; the way back is not charged to this horizon.

    Args:
        base_actions: integers (B, h), 0 short, 1 flat, 2 long.
        mark: (B, h + 1), mark prices in quote units.
        costs: (B, h, 3, 3), execution loss O by (from, to) action in quote units.
        max_position: position size m in base units.
        override: `step` or `hold`.
        initial_action: action held before step 0, one for all or one per horizon (B,).

    Raises:
        ValueError: shapes that do not belong together, values out of range, or a return that is not finite.
    """
    mark, costs = price_arrays(mark, costs, max_position=max_position)
    base = action_array(base_actions, horizon=mark.shape[-1] - 1)
    if mark.ndim != 2 or base.shape[:-1] != mark.shape[:-1]:
        raise ValueError(f"base_actions must be (B, h) and mark (B, h + 1), got shapes {base.shape} and {mark.shape}")
    before = previous_actions(base, initial_action)
    legal = legal_override_mask(base, initial_action=initial_action)
    returns = np.empty(legal.shape)
    base_rewards = np.empty(base.shape)
    for block in batch_blocks(*base.shape):
        base_rewards[block], returns[block] = _rewards_and_returns(
            base[block], before[block], mark[block], costs[block], max_position, override
        )
    require_finite(base_rewards, name="reward")
    require_finite(returns, name="return of an override")
    returns[~legal] = -np.inf
    return AdaptationTable(returns, legal, base_rewards.sum(axis=1), base_rewards)


def rank_adaptations(
    base_actions: ArrayLike,
    mark: ArrayLike,
    costs: ArrayLike,
    *,
    max_position: float,
    top: int = 5,
    override: OverrideRule = "step",
    initial_action: ArrayLike = FLAT,
) -> Adaptations:
    """The `top` best adaptations of each base plan in hindsight (Eq. 7), best first.

    Equal returns rank the earlier step first, then short before long. Arguments as in
    `adaptation_returns`; an adaptation may be worse than the base, compare with `.base_return`.

    Raises:
        ValueError: `top` below 1, or anything that `adaptation_returns` refuses.
    """
    if top < 1:
        raise ValueError(f"top must be positive, got top={top}")
    table = adaptation_returns(
        base_actions, mark, costs, max_position=max_position, override=override, initial_action=initial_action
    )
    # Flattened with the direction last, so that argmax, which takes the first maximum, settles ties as promised.
    remaining = table.returns.reshape(len(table.returns), -1)
    rows = np.arange(len(remaining))
    cells = np.empty((len(remaining), top), dtype=np.int64)
    returns = np.empty((len(remaining), top))
    for rank in range(top):
        chosen = cells[:, rank] = remaining.argmax(axis=1)
        returns[:, rank] = remaining[rows, chosen]
        remaining[rows, chosen] = -np.inf
    exists = returns > -np.inf
    steps = np.where(exists, cells // 2, -1)
    directions = np.where(exists, 2 * (cells % 2) - 1, 0).astype(np.int8)
    return Adaptations(steps, directions, returns, table.base_return)


def _rewards_and_returns(
    base: ActionArray,
    before: ActionArray,
    mark: FloatArray,
    costs: FloatArray,
    max_position: float,
    override: OverrideRule,
) -> tuple[FloatArray, FloatArray]:
    """Base rewards (B, h) and returns (B, h, 2) of one block; a return counts only where the override is legal.

    There the base does not trade at tau and holds one action up to `end`, so its losses at both bars, which
    the override saves, are entries of its own loss sequence.
    """
    horizon = base.shape[1]
    table = costs.reshape(-1)
    offsets = trade_table_offsets(costs)
    base_loss = trading_losses(before, base, costs)
    base_rewards = max_position * (base - 1.0) * np.diff(mark) - base_loss

    end = override_ends(base, override)
    resumes = end < horizon
    end_cell = np.minimum(end, horizon - 1) + horizon * np.arange(len(base))[:, np.newaxis]
    end_offsets = offsets.reshape(-1).take(end_cell) + base.reshape(-1).take(end_cell)
    saved = base_rewards.sum(axis=1, keepdims=True) + base_loss + resumes * base_loss.reshape(-1).take(end_cell)
    move = max_position * (np.take_along_axis(mark, end, axis=1) - mark[:, :-1])
    start_offsets = offsets + 3 * base

    returns = np.empty((*base.shape, 2))
    for direction, target in enumerate(OVERRIDE_TARGETS):
        paid = table.take(start_offsets + target) + resumes * table.take(end_offsets + 3 * target)
        returns[..., direction] = saved + (target - base) * move - paid
    if override == "hold":
        returns -= _holding_difference(base, costs, end)
    return base_rewards, returns


def _holding_difference(base: ActionArray, costs: FloatArray, end: IndexArray) -> FloatArray | float:
    """What holding each target instead of the base loses on the bars between tau and end: (B, h, 2)."""
    held = costs.diagonal(axis1=2, axis2=3)
    if not held.any():
        return 0.0
    paid = np.cumsum(held, axis=1)
    until = np.take_along_axis(paid, (end - 1)[..., np.newaxis], axis=1) - paid
    own = np.take_along_axis(until, base.astype(np.intp)[..., np.newaxis], axis=2)
    difference: FloatArray = until[..., OVERRIDE_TARGETS] - own
    return difference
