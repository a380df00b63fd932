"""What Phase III learns from: the reward of every override (Eq. 8) and the hindsight targets (Eq. 7 and 9)."""

from __future__ import annotations

import numpy as np

from archetype_dagster.planning.adaptations import Adaptations, AdaptationTable
from archetype_dagster.rl.stopping import NO_OVERRIDE
from archetype_dagster.types import FloatArray, StateArray


def adaptation_gains(table: AdaptationTable, notional: FloatArray) -> FloatArray:
    """R - R_base of every override in percent of notional: float64 (B, h, 2), 0 where illegal."""
    gains: FloatArray = np.where(table.legal, table.returns, table.base_return[:, np.newaxis, np.newaxis])
    gains -= table.base_return[:, np.newaxis, np.newaxis]
    return 100 * gains / notional[:, np.newaxis, np.newaxis]


def refinement_rewards(table: AdaptationTable, notional: FloatArray, *, beta_1: float) -> FloatArray:
    """r_ref of Eq. (8), (R - R_base) + beta_1 (R - R_opt^1), in percent of notional.

    R_opt^1 is the best that one override or none achieves, so the regret is never negative and
    an override that only loses less than others is not rewarded.

    Args:
        table: returns of every override of B base plans.
        notional: float64 (B,), m p_0 in quote units.
        beta_1: weight of the regret.

    Returns:
        float64 (B, h, 2) over [short, long], 0 where illegal.
    """
    gains = adaptation_gains(table, notional)
    best = gains.max(axis=(1, 2), keepdims=True).clip(min=0)
    rewards: FloatArray = np.where(table.legal, gains + beta_1 * (gains - best), 0.0)
    return rewards


def hindsight_targets(adaptations: Adaptations, horizon_bars: int) -> StateArray:
    """Target weights of the cross-entropy of Eq. (9).

    Each of the best adaptations (Eq. 7) that improves on the base is one target sequence: nothing at the
    steps before its own, its direction there, and no target after, since the episode has ended. The weights
    are the mean over those sequences. Where none improves, the target is nothing at all h steps.

    Args:
        adaptations: the best adaptations of B base plans.
        horizon_bars: h.

    Returns:
        float32 (B, h, 3) over [short, nothing, long]; a step's weights sum to the share of sequences that
        have not ended before it.
    """
    improves = (adaptations.steps >= 0) & (adaptations.returns > adaptations.base_return[:, np.newaxis])
    horizon, rank = np.nonzero(improves)
    acting = np.zeros((len(improves), horizon_bars, 3), dtype=np.int64)
    column = 1 + adaptations.directions[horizon, rank].astype(np.int64)
    np.add.at(acting, (horizon, adaptations.steps[horizon, rank], column), 1)
    sequences = improves.sum(axis=1, keepdims=True).clip(min=1)
    acting[..., NO_OVERRIDE] = sequences - np.cumsum(acting.sum(axis=-1), axis=1)
    targets: StateArray = (acting / sequences[..., np.newaxis]).astype(np.float32)
    return targets
