"""Step rewards of an action sequence: the one place where positions, prices and costs become money."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.planning.inputs import action_array, price_arrays, require_finite, valid_actions
from archetype_dagster.types import FLAT, ActionArray, FloatArray, IndexArray


def horizon_rewards(
    actions: ArrayLike,
    mark: ArrayLike,
    costs: ArrayLike,
    *,
    max_position: float,
    initial_action: ArrayLike = FLAT,
) -> FloatArray:
    """Step rewards r_t = P_t (p_{t+1} - p_t) - O_t of the paper's MDP, P_t the position after the trade at t.

    Leading axes broadcast, so K plans of each horizon take actions (B, K, h), mark (B, 1, h + 1) and
    costs (B, 1, h, 3, 3).

    Args:
        actions: integers (B, h) or (h,): 0 short, 1 flat, 2 long.
        mark: (B, h + 1) or (h + 1,), mark prices in quote units.
        costs: (B, h, 3, 3) or (h, 3, 3), execution loss O by (from, to) action in quote units.
        max_position: position size m in base units.
        initial_action: action held before the first bar, one for all or one per horizon (B,).

    Returns:
        float64, shaped like `actions`, quote units.

    Raises:
        ValueError: shapes that do not belong together, an action outside 0..2, or a reward that is not finite.
    """
    mark, costs = price_arrays(mark, costs, max_position=max_position)
    actions = action_array(actions, horizon=mark.shape[-1] - 1)
    loss = trading_losses(previous_actions(actions, initial_action), actions, costs)
    rewards: FloatArray = max_position * (actions - 1.0) * np.diff(mark) - loss
    require_finite(rewards, name="reward")
    return rewards


def trading_losses(before: ActionArray, actions: ActionArray, costs: FloatArray) -> FloatArray:
    """Execution loss O_t of going from `before` to `actions`, both (..., h), at `costs` (..., h, 3, 3)."""
    return costs.reshape(-1).take(trade_table_offsets(costs) + 3 * before + actions)


def trade_table_offsets(costs: FloatArray) -> IndexArray:
    """Where the (from, to) table of each bar begins in the flattened `costs` (..., h, 3, 3): int64 (..., h)."""
    return 9 * np.arange(costs.size // 9).reshape(costs.shape[:-2])


def previous_actions(actions: ActionArray, initial_action: ArrayLike) -> ActionArray:
    """The action held before each step: int8 like `actions` (..., h), `initial_action` (...) at step 0.

    Raises:
        ValueError: an initial action outside 0..2 or of a shape that does not fit the batch.
    """
    initial = valid_actions(initial_action, name="initial_action")
    if initial.ndim and initial.shape != actions.shape[:-1]:
        raise ValueError(
            f"initial_action must be one action or one per horizon {actions.shape[:-1]}, got shape {initial.shape}"
        )
    before = np.empty_like(actions)
    before[..., 0] = initial
    before[..., 1:] = actions[..., :-1]
    return before
