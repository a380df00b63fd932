"""The best plan of a horizon with a single trade, in hindsight: Algorithm 1 as a closed form.

With one entry, a plan is an entry bar and a direction, and its gain over staying flat is the sum of the
moves from the entry to the horizon's end less the cost of entering: suffix sums, no recursion over states.
An early exit only removes the rest of those moves, so the best one is a suffix maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.planning.inputs import batch_blocks, price_arrays, require_finite
from archetype_dagster.planning.rewards import previous_actions
from archetype_dagster.settings import TradeConstraint
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray, BoolArray, FloatArray


@dataclass(frozen=True)
class SingleTradePlans:
    """Best plans and what they are worth.

    Attributes:
        actions: int8 (B, h).
        values: float64 (B,), discounted sum of the plan's rewards, quote units.
    """

    actions: ActionArray
    values: FloatArray


def plan_single_trade(
    mark: ArrayLike,
    costs: ArrayLike,
    *,
    max_position: float,
    gamma: float = 1.0,
    trade_constraint: TradeConstraint = "single_change",
) -> ActionArray:
    """The actions of Algorithm 1: the plan from flat with the largest sum of gamma^t r_t over t = 0..h-1.

    `single_change` allows one change of position per horizon; `round_trip` allows one entry and one later
    exit to flat. Neither trades on the last bar, whose action copies the one before. Equal values go to
    flat, then to the earlier entry, then to short before long, then to holding, then to the earlier exit.
    (Read literally, the paper's recursion may wait for a trade on the last bar and then not take it; here
    the best is taken among the plans that can be carried out.)

    Args:
        mark: (B, h + 1) or (h + 1,), mark prices in quote units.
        costs: (B, h, 3, 3) or (h, 3, 3), execution loss O by (from, to) action in quote units.
        max_position: position size m in base units.
        gamma: discount per bar, in (0, 1].
        trade_constraint: `single_change` or `round_trip`.

    Returns:
        int8 (B, h) or (h,): 0 short, 1 flat, 2 long.

    Raises:
        ValueError: shapes that do not belong together, values out of range, or prices and costs that are not finite.
    """
    mark, costs = price_arrays(mark, costs, max_position=max_position)
    if mark.ndim > 2:
        raise ValueError(f"mark must be (B, h + 1) or (h + 1,), got shape {mark.shape}")
    plans = best_plans(
        np.atleast_2d(mark),
        costs if costs.ndim == 4 else costs[np.newaxis],
        max_position=max_position,
        gamma=gamma,
        trade_constraint=trade_constraint,
    )
    return plans.actions if mark.ndim == 2 else plans.actions[0]


def best_plans(
    mark: FloatArray, costs: FloatArray, *, max_position: float, gamma: float, trade_constraint: TradeConstraint
) -> SingleTradePlans:
    """`plan_single_trade` of a batch, with the value each plan promises."""
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must lie in (0, 1], got gamma={gamma}")
    if trade_constraint not in ("single_change", "round_trip"):
        raise ValueError(
            f"trade_constraint must be 'single_change' or 'round_trip', got trade_constraint={trade_constraint!r}"
        )
    batch, horizon = mark.shape[0], mark.shape[1] - 1
    plans = SingleTradePlans(np.full((batch, horizon), FLAT, dtype=np.int8), np.empty(batch))
    discount = gamma ** np.arange(horizon)
    for block in batch_blocks(batch, horizon):
        _plan_block(
            mark[block],
            costs[block],
            max_position,
            discount,
            trade_constraint,
            plans.actions[block],
            plans.values[block],
        )
    require_finite(plans.values, name="value of the plan")
    return plans


def obeys_constraint(actions: ActionArray, trade_constraint: TradeConstraint) -> BoolArray:
    """Which plans (B, h) from flat trade as often as allowed and not on the last bar: bool (B,)."""
    before = previous_actions(actions, FLAT)
    trades = actions != before
    entries = (trades & (before == FLAT)).sum(axis=1)
    exits = (trades & (actions == FLAT)).sum(axis=1)
    flips = trades.sum(axis=1) - entries - exits
    obeyed: BoolArray = (entries <= 1) & (flips == 0) & ~trades[:, -1]
    return obeyed if trade_constraint == "round_trip" else obeyed & (exits == 0)


def _plan_block(
    mark: FloatArray,
    costs: FloatArray,
    max_position: float,
    discount: FloatArray,
    trade_constraint: TradeConstraint,
    actions: ActionArray,
    values: FloatArray,
) -> None:
    """Write the plans of one block into `actions` (B, h), flat on entry, and their worth into `values` (B,)."""
    held = costs.diagonal(axis1=2, axis2=3)
    values[:] = -held[..., FLAT] @ discount
    if len(discount) == 1:
        return
    move = max_position * _discounted_moves(mark, discount)
    short, long = ((target - 1) * move - _holding_losses(held, target, discount) for target in (SHORT, LONG))
    gain_short = _entry_gains(short, costs, SHORT, discount)
    gain_long = _entry_gains(long, costs, LONG, discount)
    if trade_constraint == "round_trip":
        exit_short = _exit_gains(short, costs, SHORT, discount)
        exit_long = _exit_gains(long, costs, LONG, discount)
        gain_short[:, :-1] += _best_from(exit_short)[:, 1:]
        gain_long[:, :-1] += _best_from(exit_long)[:, 1:]

    best = np.maximum(gain_short, gain_long)
    entry = best.argmax(axis=1)[:, np.newaxis]
    gain = np.take_along_axis(best, entry, axis=1)
    is_short = np.take_along_axis(gain_short, entry, axis=1) == gain
    bars = np.arange(len(discount))
    in_trade = (gain > 0) & (bars >= entry)
    if trade_constraint == "round_trip":
        exits = np.where(is_short, exit_short, exit_long)
        exits[bars[:-1] <= entry] = -np.inf
        leaves = exits.max(axis=1, keepdims=True) > 0
        in_trade &= ~leaves | (bars < exits.argmax(axis=1, keepdims=True))
    values += np.maximum(gain[:, 0], 0.0)
    np.copyto(actions, np.where(is_short, SHORT, LONG).astype(np.int8), where=in_trade)


def _discounted_moves(mark: FloatArray, discount: FloatArray) -> FloatArray:
    """Sum of gamma^i (p_{i+1} - p_i) over i = t..h-1, for every t: (B, h)."""
    if discount[-1] == 1:
        # Telescoped, so that equal prices tie exactly and no rounding accumulates.
        return mark[:, -1:] - mark[:, :-1]
    return _suffix_sums(discount * np.diff(mark))


def _holding_losses(held: FloatArray, target: int, discount: FloatArray) -> FloatArray | float:
    """What the table charges from t on for holding `target` rather than flat: (B, h), 0 on real books."""
    return _suffix_sums(discount * (held[..., target] - held[..., FLAT])) if held.any() else 0.0


def _entry_gains(lead: FloatArray, costs: FloatArray, target: int, discount: FloatArray) -> FloatArray:
    """Gain over flat of entering at each bar but the last and holding: (B, h - 1)."""
    entry = costs[:, :-1, FLAT, target] - costs[:, :-1, target, target]
    return lead[:, :-1] - discount[:-1] * entry


def _exit_gains(lead: FloatArray, costs: FloatArray, target: int, discount: FloatArray) -> FloatArray:
    """Gain over holding on of going flat at each bar but the last: (B, h - 1)."""
    leaving = costs[:, :-1, target, FLAT] - costs[:, :-1, FLAT, FLAT]
    return -lead[:, :-1] - discount[:-1] * leaving


def _best_from(gains: FloatArray) -> FloatArray:
    """Largest of zero and the gains at t and later, for every t."""
    best: FloatArray = np.maximum(np.maximum.accumulate(gains[:, ::-1], axis=1)[:, ::-1], 0.0)
    return best


def _suffix_sums(values: FloatArray) -> FloatArray:
    """Sum of the values at t and later, for every t."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
