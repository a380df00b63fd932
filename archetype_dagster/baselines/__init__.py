"""The strategies of the paper's Table 1: rules and learners, trained and judged on the same bars and costs."""

from archetype_dagster.baselines.registry import BASELINES, Baseline, fit_baseline, load_baseline
from archetype_dagster.baselines.strategy import Strategy, mean_reward, rolled_out

__all__ = ["BASELINES", "Baseline", "Strategy", "fit_baseline", "load_baseline", "mean_reward", "rolled_out"]
