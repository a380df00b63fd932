"""How a trained policy is kept up to date and watched."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archetype_dagster.settings.section import Fraction, PositiveFloat, PositiveInt, Section


class OperationsSettings(Section):
    """Recent evaluation, drift, freshness, retraining and the arrival of files."""

    recent_days: PositiveInt = Field(
        30, description="Newest days of bars that the trained policy is evaluated on, as far as the test split reaches."
    )
    psi_limit: PositiveFloat = Field(
        0.25, description="Population stability index from which a feature counts as drifted."
    )
    drifted_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.25, description="Share of drifted features from which the check warns."
    )
    usage_significance: Fraction = Field(
        0.001, description="Odds, were nothing to have changed, below which another use of the archetypes warns."
    )
    stale_hours: PositiveFloat = Field(36.0, description="Age of the newest bar from which the bars count as stale.")
    roll_splits: bool = Field(
        False, description="Weekly retraining moves all splits on by whole weeks, as far as time has gone."
    )
    settle_seconds: PositiveFloat = Field(
        60.0, description="How long a new raw file must have been left alone before it counts as whole."
    )
