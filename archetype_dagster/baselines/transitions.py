"""What paths over a table of rewards are worth: the best in hindsight, and those of given decisions.

The market does not react to the trader, so nothing here is sampled: the reward of each (held, next) pair of
actions is known for every row of a split, and so is the best that could have followed it.
"""

from __future__ import annotations

import numpy as np

from archetype_dagster.planning.rewards import previous_actions
from archetype_dagster.types import ActionArray, BoolArray, FloatArray

_EACH_ACTION = np.arange(3, dtype=np.int8)


def optimal_action_values(rewards: FloatArray, usable: BoolArray, *, gamma: float) -> FloatArray:
    """Q*[t, i, j] = r[t, i, j] + gamma max_k Q*[t + 1, j, k], zero beyond a run of usable rows, in hindsight.

    The backward recursion of EarnHFT's optimal value supervisor. It composes (max, +) products of 3 x 3
    tables, which is associative, so all rows follow from ceil(log2 T) rounds of pairwise composition.

    Args:
        rewards: float64 (T, 3, 3) by (held, next) action, see `RewardTable`.
        usable: bool (T,), rows whose reward is known; the last row is not one of them.
        gamma: discount per bar, in (0, 1].

    Returns:
        float64 (T, 3, 3), zero where a row is not usable.

    Raises:
        ValueError: shapes that do not belong together, or a usable last row.
    """
    if rewards.shape != (*usable.shape, 3, 3):
        raise ValueError(f"rewards must be (T, 3, 3) for T = {len(usable)} rows, got {rewards.shape}")
    if len(usable) and usable[-1]:
        raise ValueError("the last row cannot be usable: the price after it is not known")
    best = np.where(usable[:, np.newaxis, np.newaxis], rewards, 0.0)
    # `going` rows hold the best sums over `span` rows and go on after them; the others' sums are complete.
    going, span = usable.copy(), 1
    while going.any():
        rows = np.flatnonzero(going)
        sums, later = best[rows], gamma**span * best[rows + span]
        best[rows] = np.max(sums[:, :, :, np.newaxis] + later[:, np.newaxis], axis=2)
        going[rows] = going[rows + span]
        span *= 2
    following = gamma * best[1:].max(axis=2)
    values = np.zeros_like(rewards)
    values[:-1] = rewards[:-1] + following[:, np.newaxis]
    values[~usable] = 0.0
    return values


def rolled_from_each(maps: ActionArray) -> ActionArray:
    """Actions of n stretches of bars, each entered with each of the three actions held.

    Args:
        maps: int8 (n, 3, bars, 3) by (entered with, bar, held), the next action; or (n, 1, bars, 3) where
            the decisions are the same whatever a stretch was entered with.

    Returns:
        int8 (n, 3, bars).
    """
    n, _, bars, _ = maps.shape
    actions = np.empty((n, 3, bars), dtype=np.int8)
    held = np.broadcast_to(_EACH_ACTION, (n, 3))
    maps = np.broadcast_to(maps, (n, 3, bars, 3))
    for bar in range(bars):
        held = np.take_along_axis(maps[:, :, bar], held[..., np.newaxis].astype(np.int64), axis=2)[..., 0]
        actions[:, :, bar] = held
    return actions


def rewards_from_each(rewards: FloatArray, actions: ActionArray) -> FloatArray:
    """Step rewards of stretches entered with each action: (n, bars, 3, 3) and int8 (n, 3, bars) -> (n, 3, bars)."""
    before = previous_actions(actions, np.broadcast_to(_EACH_ACTION, actions.shape[:2]))
    n, _, bars = actions.shape
    return rewards[np.arange(n)[:, np.newaxis, np.newaxis], np.arange(bars), before, actions]
