"""What an environment shows, takes and calls an episode."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from archetype_dagster.settings.section import PositiveInt, Section


class EnvironmentSettings(Section):
    """The backtest environments of one and of several legs."""

    actions: Literal["continuous", "discrete"] = Field(
        "continuous", description="Target positions anywhere from -1 to 1, or short, flat and long only."
    )
    lookback_bars: PositiveInt = Field(1, description="Bars in an observation, the newest one included.")
    features: bool = Field(False, description="Whether an observation holds the 45 features of each bar.")
    units: Literal["relative", "raw"] = Field(
        "relative", description="Observations in units a network can learn from, or as the source has them."
    )
    episode_bars: PositiveInt | None = Field(
        288, description="Steps after which an episode is cut off; null goes on to the end of the data."
    )
    starts: Literal["random", "first"] = Field(
        "random", description="Episodes begin on a row drawn uniformly, or always on the first one."
    )
    sizes_per_unit: PositiveInt = Field(
        8, description="Order sizes per unit position that are priced on the book; between them losses are linear."
    )
