"""How certain a result is."""

from __future__ import annotations

from math import comb
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.section import PositiveInt, Section

MAX_COMBINATIONS: Final = 200_000

NonNegativeInt = Annotated[int, Field(ge=0)]


class StatisticsSettings(Section):
    """Intervals, corrected Sharpe ratios and the probability of overfitting."""

    bootstrap_samples: PositiveInt = Field(2_000, description="Resampled paths behind each interval.")
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(0.95, description="Coverage of the intervals.")
    block_bars: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        None, description="Mean length of a resampled block; null estimates it from the returns and their squares."
    )
    hac_lags: NonNegativeInt | None = Field(
        None, description="Autocorrelations in the robust standard error of a Sharpe ratio; null grows with the bars."
    )
    overfitting_groups: Annotated[int, Field(ge=2)] = Field(
        16, description="Equal stretches of time that the probability of overfitting is computed from."
    )
    overfitting_test_groups: PositiveInt = Field(8, description="Of those, how many are held out at a time.")
    purge_bars: NonNegativeInt = Field(
        144,
        description="Training bars dropped on either side of a held-out stretch: the longest horizon that is judged.",
    )
    embargo_bars: NonNegativeInt = Field(
        60, description="Further training bars dropped after a held-out stretch: as far back as a feature reads."
    )

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.overfitting_test_groups >= self.overfitting_groups:
            raise ValueError(
                f"overfitting_test_groups must be below overfitting_groups={self.overfitting_groups}, "
                f"got overfitting_test_groups={self.overfitting_test_groups}"
            )
        combinations = comb(self.overfitting_groups, self.overfitting_test_groups)
        if combinations > MAX_COMBINATIONS:
            raise ValueError(
                f"overfitting_groups and overfitting_test_groups must give at most {MAX_COMBINATIONS} combinations, "
                f"got {combinations}"
            )
        return self
