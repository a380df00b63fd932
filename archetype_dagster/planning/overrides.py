"""Eq. (6), the rule by which an override replaces base actions: where it is legal and how long it lasts."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.planning.inputs import valid_actions
from archetype_dagster.planning.rewards import previous_actions
from archetype_dagster.settings import OverrideRule
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray, BoolArray, IndexArray

# The action behind each direction, index 0 and 1 of a mask's or a table's last axis.
OVERRIDE_TARGETS: Final = (SHORT, LONG)


def legal_override_mask(base_actions: ArrayLike, *, initial_action: ArrayLike = FLAT) -> BoolArray:
    """Where an override may act: the base action has not just changed (Eq. 6) and would change by it.

    Args:
        base_actions: integers (..., h), 0 short, 1 flat, 2 long.
        initial_action: action held before step 0, one for all or one per horizon (...).

    Returns:
        bool (..., h, 2); direction 0 is short, 1 is long.
    """
    base = valid_actions(base_actions, name="base_actions")
    unchanged = base == previous_actions(base, initial_action)
    legal = np.empty((*base.shape, 2), dtype=np.bool_)
    for direction, target in enumerate(OVERRIDE_TARGETS):
        np.logical_and(unchanged, base != target, out=legal[..., direction])
    return legal


def apply_override(
    base_actions: ArrayLike, steps: ArrayLike, directions: ArrayLike, override: OverrideRule
) -> ActionArray:
    """Final actions (Eq. 6): the base plan with at most one override per horizon.

    Legality is the caller's matter (`legal_override_mask`), since step 0 depends on the action held before.

    Args:
        base_actions: integers (..., h), 0 short, 1 flat, 2 long.
        steps: integers (...), step tau of the override, -1 for none.
        directions: integers (...), -1 short or +1 long; 0 exactly where the step is -1.
        override: `step` or `hold`.

    Returns:
        int8 (..., h).

    Raises:
        ValueError: a step outside -1..h-1, a direction outside -1..1, or a step without a direction.
    """
    base = valid_actions(base_actions, name="base_actions")
    horizon = base.shape[-1]
    steps, directions = np.asarray(steps), np.asarray(directions)
    if steps.shape != base.shape[:-1] or directions.shape != steps.shape:
        raise ValueError(
            f"steps and directions must have the batch shape {base.shape[:-1]}, "
            f"got {steps.shape} and {directions.shape}"
        )
    if ((steps < -1) | (steps >= horizon)).any():
        raise ValueError(f"steps must lie in -1..{horizon - 1}, got {steps[(steps < -1) | (steps >= horizon)].flat[0]}")
    if ((np.abs(directions) > 1) | ((directions == 0) != (steps == -1))).any():
        raise ValueError("directions must be -1 or +1 where an override acts and 0 where steps is -1")
    step = steps[..., np.newaxis].astype(np.int64)
    end = np.take_along_axis(override_ends(base, override), np.maximum(step, 0), axis=-1)
    bars = np.arange(horizon)
    overridden = (step >= 0) & (bars >= step) & (bars < end)
    final: ActionArray = np.where(overridden, (1 + directions[..., np.newaxis]).astype(np.int8), base)
    return final


def override_ends(base_actions: ActionArray, override: OverrideRule) -> IndexArray:
    """First bar after tau at which the base plan rules again, for every tau: int64 (..., h), values 1..h."""
    horizon = base_actions.shape[-1]
    following = np.arange(1, horizon + 1)
    if override == "step":
        return np.broadcast_to(following, base_actions.shape)
    if override != "hold":
        raise ValueError(f"override must be 'step' or 'hold', got override={override!r}")
    trade_at = np.full(base_actions.shape, horizon)
    np.copyto(trade_at[..., :-1], following[:-1], where=base_actions[..., 1:] != base_actions[..., :-1])
    ends: IndexArray = np.minimum.accumulate(trade_at[..., ::-1], axis=-1)[..., ::-1]
    return ends
