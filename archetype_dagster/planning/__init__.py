"""Hindsight: the best single-trade plan of a horizon (Algorithm 1), its rewards, and adaptations of a plan (Eq. 7)."""

from archetype_dagster.planning.adaptations import (
    Adaptations,
    AdaptationTable,
    adaptation_returns,
    apply_override,
    legal_override_mask,
    rank_adaptations,
)
from archetype_dagster.planning.rewards import horizon_rewards

__all__ = [
    "AdaptationTable",
    "Adaptations",
    "adaptation_returns",
    "apply_override",
    "horizon_rewards",
    "legal_override_mask",
    "rank_adaptations",
]
