"""Phase II: choosing the archetype of each horizon from the market state at its start."""

from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.returns_table import ArchetypeReturns, ReturnsTable, build_archetype_returns
from archetype_dagster.selection.selector import Selector
from archetype_dagster.selection.training import train_selector

__all__ = [
    "ArchetypeReturns",
    "ReturnsTable",
    "Selector",
    "SelectorNetwork",
    "build_archetype_returns",
    "train_selector",
]
