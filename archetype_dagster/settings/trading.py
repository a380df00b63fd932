"""Costs, execution and features."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archetype_dagster.settings.section import NonNegativeFloat, PositiveFloat, Section
from archetype_dagster.types import DepthPolicy, FeatureScale, HorizonBoundary


class ExecutionSettings(Section):
    """How a decision becomes a trade and what it costs."""

    commission_rate: NonNegativeFloat = Field(0.0002, description="Commission as a fraction of traded notional.")
    depth_policy: DepthPolicy = Field("extrapolate", description="How size beyond the visible book is priced.")
    execution_delay_bars: Annotated[int, Field(ge=0)] = Field(
        0, description="Bars between a decision and the book it executes on."
    )
    horizon_boundary: HorizonBoundary = Field(
        "carry", description="Carry the position over a horizon's end, or settle it to flat."
    )
    initial_capital: PositiveFloat | None = Field(
        None, description="Starting net value in quote units; empty means m times the first mark price."
    )


class FeatureSettings(Section):
    """The 45 features and their scaling."""

    scale: FeatureScale = Field("relative", description="Divide price levels by the mid, or keep them raw.")
    clip_sigma: PositiveFloat = Field(10.0, description="Scaled features are clipped to this many training deviations.")
