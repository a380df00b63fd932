"""EarnHFT and MacroHFT: several agents and something that chooses among or blends them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.section import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section


class ValueLearningSettings(Section):
    """Q-learning with a hindsight teacher, which both methods train their agents with."""

    chunk_bars: Annotated[int, Field(ge=2)] = Field(72, description="Bars of the market chunks that get labels.")
    agents_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.8, description="Share of the budget that goes to the agents, in equal parts; the rest trains what joins them."
    )
    batch_size: PositiveInt = Field(256, description="Rows per gradient step, each with all of its transitions.")
    target_rate: Annotated[Fraction, Field(gt=0)] = Field(
        0.02, description="Share by which the target network moves to the online one per update."
    )
    teacher_weight: NonNegativeFloat = Field(0.1, description="Weight of the divergence from the hindsight teacher.")
    teacher_temperature: PositiveFloat = Field(
        0.1, description="Temperature of the softmax over action values, in percent of notional."
    )


class EarnHftSettings(ValueLearningSettings):
    """Trend-labelled low-level agents and a router."""

    trend_preferences: Annotated[tuple[float, ...], Field(min_length=1)] = Field(
        (-1.0, -0.25, 0.25, 1.0),
        description="One agent each: how much it prefers to train on chunks that rose; negative for those that fell.",
    )
    num_trends: PositiveInt = Field(5, description="Trend labels, from the steepest fall to the steepest rise.")
    decision_bars: PositiveInt = Field(6, description="Bars between two choices of the router.")


class MacroHftSettings(ValueLearningSettings):
    """Context sub-policies fused by a hyper-agent with a memory."""

    num_labels: PositiveInt = Field(3, description="Labels of trend, and of volatility; one sub-agent each.")
    context_bars: Annotated[int, Field(ge=2)] = Field(
        36, description="Past bars that trend and volatility are read from."
    )
    memory_size: PositiveInt = Field(4320, description="States that the memory holds.")
    memory_neighbours: PositiveInt = Field(5, description="Nearest remembered states that a value is recalled from.")
    memory_weight: NonNegativeFloat = Field(0.5, description="Weight of the squared distance to the recalled value.")

    @model_validator(mode="after")
    def _enough_memory(self) -> Self:
        if self.memory_neighbours > self.memory_size:
            raise ValueError(
                f"memory_neighbours must be at most memory_size={self.memory_size}, "
                f"got memory_neighbours={self.memory_neighbours}"
            )
        return self
