"""What `archetype acceptance` trains, how often, and what it must reach."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.section import PositiveFloat, PositiveInt, Section
from archetype_dagster.settings.studies import Seed
from archetype_dagster.settings.sweeps import SweepSettings


class AcceptanceSettings(Section):
    """Budgets and targets of the four acceptance metrics."""

    pair: str = Field("ETH", description="Pair that all four are measured on.")
    profile: str = Field("smoke", description="Profile of the settings that count as the baseline.")
    overrides: dict[str, Any] = Field(default_factory=dict, description="Settings of the baseline on top of it.")
    seeds: tuple[Seed, ...] = Field((0, 1, 2, 3, 4), min_length=2, description="Seeds of the policies that are judged.")
    sweep: SweepSettings = Field(description="The sweep whose best settings and time are measured.")
    sweep_run_seed: Seed = Field(100, description="Seed of the policies that the sweep trains; none of the others.")
    real_path: str = Field("spot_5m", description="Folder of candles, below that of the real data.")
    onnx_seeds: PositiveInt | None = Field(
        None, description="Seeds, the first ones, whose policies are exported; empty exports all."
    )
    onnx_bars: PositiveInt | None = Field(
        None, description="Test bars that are streamed through each bundle; empty streams all."
    )
    max_steps: PositiveInt = Field(100_000, description="Environment steps that a policy may train for.")
    least_sharpe: float = Field(1.0, description="Sharpe ratio on the test split that must be exceeded.")
    least_gain: PositiveFloat = Field(0.2, description="Gain in it by the sweep's settings, as a fraction.")
    poor_gain: Annotated[float, Field(ge=0)] = Field(0.1, description="Gain below which the search space is too small.")
    most_pnl_error: PositiveFloat = Field(0.05, description="Error of a bundle's profit that must stay below.")
    poor_pnl_error: PositiveFloat = Field(0.1, description="Error above which something is broken.")
    most_hours: PositiveFloat = Field(3.0, description="Wall time that the sweep may take, in hours.")

    @model_validator(mode="after")
    def _judged_on_other_seeds(self) -> Self:
        if self.sweep_run_seed in self.seeds:
            raise ValueError(f"sweep_run_seed must be none of seeds, got sweep_run_seed={self.sweep_run_seed}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        return self
