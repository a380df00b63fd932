"""Phase III: overriding the chosen archetype at most once per horizon."""

from archetype_dagster.refinement.adapter import context_size, greedy_override, refinement_context
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.refinement.training import train_refiner

__all__ = [
    "Refiner",
    "RefinerNetwork",
    "context_size",
    "greedy_override",
    "refinement_context",
    "train_refiner",
]
