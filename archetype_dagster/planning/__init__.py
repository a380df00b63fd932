"""Hindsight: the best single-trade plan of a horizon (Algorithm 1), its rewards, and adaptations of a plan (Eq. 7)."""

from archetype_dagster.planning.adaptations import (
    Adaptations,
    AdaptationTable,
    adaptation_returns,
    rank_adaptations,
)
from archetype_dagster.planning.overrides import apply_override, legal_override_mask
from archetype_dagster.planning.rewards import horizon_rewards
from archetype_dagster.planning.single_trade import SingleTradePlans, best_plans, obeys_constraint, plan_single_trade
from archetype_dagster.planning.trajectories import PlanAudit, Trajectories, build_trajectories, verify_trajectories

__all__ = [
    "AdaptationTable",
    "Adaptations",
    "PlanAudit",
    "SingleTradePlans",
    "Trajectories",
    "adaptation_returns",
    "apply_override",
    "best_plans",
    "build_trajectories",
    "horizon_rewards",
    "legal_override_mask",
    "obeys_constraint",
    "plan_single_trade",
    "rank_adaptations",
    "verify_trajectories",
]
