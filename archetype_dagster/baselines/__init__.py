"""The strategies of the paper's Table 1: rules and learners, trained and judged on the same bars and costs."""

from archetype_dagster.baselines.strategy import Strategy, rolled_out

__all__ = ["Strategy", "rolled_out"]
