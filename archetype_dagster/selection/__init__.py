"""Phase II: choosing the archetype of each horizon from the market state at its start."""

from archetype_dagster.selection.base_plan import BasePlan, base_plan
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.continuous_training import train_continuous_selector
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.returns_table import ArchetypeReturns, ReturnsTable, build_archetype_returns
from archetype_dagster.selection.selector import Selector
from archetype_dagster.selection.training import train_selector

__all__ = [
    "ArchetypeReturns",
    "BasePlan",
    "ContinuousSelector",
    "ReturnsTable",
    "Selector",
    "SelectorNetwork",
    "base_plan",
    "build_archetype_returns",
    "train_continuous_selector",
    "train_selector",
]
