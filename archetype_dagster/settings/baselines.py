"""The strategies of the paper's Table 1 that the policy is compared with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archetype_dagster.settings.hierarchical import EarnHftSettings, MacroHftSettings
from archetype_dagster.settings.section import PositiveFloat, PositiveInt, Section


class BaselineSettings(Section):
    """Budgets and networks of the learners, and the constants of the rules."""

    total_steps: PositiveInt = Field(3_000_000, description="Environment steps of each learner.")
    num_envs: PositiveInt = Field(64, description="Copies of the market that a learner steps at a time.")
    episode_bars: PositiveInt = Field(720, description="Bars after which an episode of training is truncated.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="Discount per bar.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_sizes: tuple[PositiveInt, ...] = Field((128, 128), description="Units of the MLPs' layers.")
    evaluations: PositiveInt = Field(10, description="Validation passes spread over the training.")
    earnhft: EarnHftSettings = Field(EarnHftSettings(), description="EarnHFT.")
    macrohft: MacroHftSettings = Field(MacroHftSettings(), description="MacroHFT.")
