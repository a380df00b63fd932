"""What is trained again to see what a result depends on."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from archetype_dagster.settings.section import NonNegativeFloat, PositiveFloat, Section
from archetype_dagster.types import DepthPolicy

# Windows are partitions of the graph, and those are fixed.
MAX_WINDOWS: Final = 12

Seed = Annotated[int, Field(ge=0)]
Delay = Annotated[int, Field(ge=0)]
AtLeastTwo = Annotated[int, Field(ge=2)]


class StudySettings(Section):
    """Seeds, ablations, walk-forward and sensitivities."""

    seeds: tuple[Seed, ...] = Field((0, 1, 2), min_length=1, description="Seeds of the multi-seed runs.")
    horizons_bars: tuple[AtLeastTwo, ...] = Field((36, 72, 144), description="Horizons compared in Table 4.")
    code_counts: tuple[AtLeastTwo, ...] = Field((5, 10, 20), description="Numbers of archetypes compared in Table 4.")
    walk_forward_windows: Annotated[int, Field(ge=1, le=MAX_WINDOWS)] = Field(
        4, description="Equal test windows that the policy is retrained before."
    )
    commission_rates: tuple[NonNegativeFloat, ...] = Field(
        (0.0, 0.0001, 0.0002, 0.0005, 0.001), description="Commissions the frozen policy is judged at."
    )
    depth_policies: tuple[DepthPolicy, ...] = Field(
        ("extrapolate", "last_level", "reject"), description="Depth policies the frozen policy is judged under."
    )
    delays_bars: tuple[Delay, ...] = Field((0, 1, 2), description="Execution delays the frozen policy is judged at.")
    capital_multiples: tuple[PositiveFloat, ...] = Field(
        (0.5, 1.0, 2.0, 5.0), description="Initial capitals as multiples of m times the first mark price."
    )
