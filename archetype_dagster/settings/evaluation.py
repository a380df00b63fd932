"""The out-of-sample report."""

from __future__ import annotations

from pydantic import Field

from archetype_dagster.settings.section import PositiveInt, Section


class EvaluationSettings(Section):
    """The out-of-sample report."""

    random_archetype_draws: PositiveInt = Field(20, description="Seeded runs behind the random-archetype row.")
    leak_check_cuts: PositiveInt = Field(4, description="Random times after which the leak check perturbs the market.")
    archetype_examples: PositiveInt = Field(
        2, description="Example horizons drawn per archetype in the behaviour plot."
    )
