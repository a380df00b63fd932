"""How certain a result is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archetype_dagster.settings.section import PositiveInt, Section


class StatisticsSettings(Section):
    """Intervals, corrected Sharpe ratios and the probability of overfitting."""

    bootstrap_samples: PositiveInt = Field(2_000, description="Resampled paths behind each interval.")
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(0.95, description="Coverage of the intervals.")
