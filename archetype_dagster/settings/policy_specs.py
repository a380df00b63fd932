"""What a trained policy is made from, in one file: prices, windows, environment, backbone, algorithm and budget."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from archetype_dagster.settings.files import named_mapping, shipped_names
from archetype_dagster.settings.phases import PpoSettings
from archetype_dagster.settings.policies import CleanRlAlgorithm
from archetype_dagster.settings.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section
from archetype_dagster.settings.task_environments import (
    MarketMakingSettings,
    OptimalExecutionSettings,
    PortfolioAllocationSettings,
    PricePathSettings,
    StockTradingSettings,
)

_FOLDER: Final = "rl/policies"
_Share = Annotated[float, Field(gt=0, lt=1)]
_Gamma = Annotated[float, Field(gt=0, le=1)]


class GeneratedUniverse(PricePathSettings):
    """Prices generated from a seed, from the beginning of 2024 on."""

    source: Literal["generated"] = Field(description="Where prices come from.")


class CandleUniverse(Section):
    """Closes of real candles, on the bars that all pairs have."""

    source: Literal["candles"] = Field(description="Where prices come from.")
    path: Path = Field(description="File, folder or glob of candles as the pipeline's source `candles` reads them.")
    pairs: tuple[str, ...] = Field(min_length=1, description="Traded pairs: BTC, ETH, DOT or BNB.")
    bar_minutes: PositiveInt = Field(description="Length of a bar; a multiple of the candles' length.")


class PolicyWindows(Section):
    """Half-open ranges of bar ends, UTC; nothing is seen beyond its own range."""

    train_start: datetime = Field(description="First bar that is trained on.")
    train_end: datetime = Field(description="Training ends before this time.")
    validation_start: datetime = Field(description="First bar that the weights kept are chosen on.")
    validation_end: datetime = Field(description="Validation ends before this time.")
    evaluation_start: datetime = Field(description="First bar of the held-out window.")
    evaluation_end: datetime = Field(description="The held-out window ends before this time.")

    @field_validator("*", mode="after")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        times = list(dict(self).values())
        if times != sorted(times) or any(a >= b for a, b in zip(times[::2], times[1::2], strict=True)):
            raise ValueError("windows must be ordered and disjoint: train, validation, evaluation")
        return self

    def window(self, name: Literal["train", "validation", "evaluation"]) -> tuple[datetime, datetime]:
        """Start and end of a window."""
        return getattr(self, f"{name}_start"), getattr(self, f"{name}_end")


class StockTradingTask(StockTradingSettings):
    """Target weights in several assets."""

    name: Literal["StockTradingEnv"] = Field(description="The environment.")


class PortfolioAllocationTask(PortfolioAllocationSettings):
    """Weights that sum to one."""

    name: Literal["PortfolioAllocationEnv"] = Field(description="The environment.")


class MarketMakingTask(MarketMakingSettings):
    """Quotes around the mid."""

    name: Literal["MarketMakingEnv"] = Field(description="The environment.")


class OptimalExecutionTask(OptimalExecutionSettings):
    """One order within a horizon."""

    name: Literal["OptimalExecutionEnv"] = Field(description="The environment.")


class BackboneSettings(Section):
    """The network that reads the environment's `lookback_bars`."""

    alias: str = Field(description="Alias in the registry of backbones.")
    features_dim: PositiveInt = Field(64, description="Features handed to actor and critic.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The backbone's own arguments.")


class PpoAlgorithm(PpoSettings):
    """PPO of Stable-Baselines3."""

    name: Literal["PPO"] = Field(description="The algorithm.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    rollout_steps: PositiveInt = Field(256, description="Steps of each copy per rollout.")
    batch_size: Annotated[int, Field(ge=2)] = Field(64, description="Steps per gradient step.")
    gamma: _Gamma = Field(0.99, description="Discount per step.")
    max_gradient_norm: PositiveFloat = Field(0.5, description="Norm to which gradients are clipped.")
    initial_deviation: PositiveFloat = Field(
        1.0, description="Standard deviation of actions at the start; they reach from -1 to 1."
    )
    hidden_sizes: tuple[PositiveInt, ...] = Field((64,), description="Units of the layers of actor and critic each.")


class SacAlgorithm(Section):
    """SAC of Stable-Baselines3."""

    name: Literal["SAC"] = Field(description="The algorithm.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size of actor, critics and entropy weight.")
    buffer_steps: PositiveInt = Field(100_000, description="Steps that the replay buffer holds.")
    learning_starts: Annotated[int, Field(ge=0)] = Field(1_000, description="Steps of random actions before learning.")
    batch_size: PositiveInt = Field(256, description="Transitions per gradient step.")
    train_interval: PositiveInt = Field(1, description="Steps of each copy between two rounds of gradient steps.")
    gradient_steps: PositiveInt = Field(1, description="Gradient steps in a round.")
    gamma: _Gamma = Field(0.99, description="Discount per step.")
    target_rate: Annotated[float, Field(gt=0, le=1)] = Field(0.005, description="Share of the target critics renewed.")
    entropy_weight: NonNegativeFloat | Literal["auto"] = Field(
        "auto", description="Weight of the entropy; auto learns it."
    )
    hidden_sizes: tuple[PositiveInt, ...] = Field((64,), description="Units of the layers of actor and critics each.")


class SingleFileAlgorithm(CleanRlAlgorithm):
    """The single-file PPO of this library."""

    name: Literal["CleanRL"] = Field(description="The algorithm.")


class ScalingSettings(Section):
    """Observations less their mean over their deviation, both measured on the training window."""

    steps: Annotated[int, Field(ge=2)] = Field(2_000, description="Steps of random actions that are measured.")
    clip_sigma: PositiveFloat = Field(10.0, description="Bound of what comes out, in deviations.")


class ValidationSettings(Section):
    """How the weights kept are chosen."""

    times: PositiveInt = Field(10, description="Validations spread over the training, besides the one before it.")
    episodes: PositiveInt = Field(8, description="Episodes of each, begun evenly over the validation window.")


class HeldOutSettings(Section):
    """How the policy and the built-in ones are judged."""

    episodes: PositiveInt = Field(32, description="Episodes, begun evenly over the evaluation window.")
    bootstrap_samples: PositiveInt = Field(2_000, description="Resamples of the episodes behind each interval.")
    confidence: _Share = Field(0.95, description="Coverage of the intervals.")


class PolicySpec(Section):
    """One policy: what it trades, learns with and is judged by."""

    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed from which every random stream is derived.")
    universe: GeneratedUniverse | CandleUniverse = Field(discriminator="source", description="Prices.")
    windows: PolicyWindows = Field(description="What is trained, chosen and judged on.")
    environment: StockTradingTask | PortfolioAllocationTask | MarketMakingTask | OptimalExecutionTask = Field(
        discriminator="name", description="The task with its costs, its episodes and what ends them."
    )
    scaling: ScalingSettings | None = Field(
        ScalingSettings(), description="Scaling of observations; null leaves them as they are."
    )
    reward_scale: PositiveFloat = Field(
        1.0, description="What rewards are multiplied by in training, so that losses are of the size of one."
    )
    backbone: BackboneSettings = Field(description="The network below actor and critic.")
    algorithm: PpoAlgorithm | SacAlgorithm | SingleFileAlgorithm = Field(
        discriminator="name", description="What trains it."
    )
    total_steps: PositiveInt = Field(100_000, description="Environment steps of the training, all copies together.")
    copies: PositiveInt = Field(4, description="Copies of the environment that are stepped together.")
    validation: ValidationSettings = Field(ValidationSettings(), description="Choosing the weights kept.")
    evaluation: HeldOutSettings = Field(HeldOutSettings(), description="Judging on the held-out window.")

    @model_validator(mode="after")
    def _one_asset_where_one_is_traded(self) -> Self:
        assets = len(self.universe.pairs) if isinstance(self.universe, CandleUniverse) else self.universe.assets
        if isinstance(self.environment, MarketMakingTask | OptimalExecutionTask) and assets != 1:
            raise ValueError(f"{self.environment.name} trades one asset, the universe holds {assets}")
        return self

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        if isinstance(self.algorithm, PpoAlgorithm):
            rollout = self.algorithm.rollout_steps * self.copies
            if rollout % self.algorithm.batch_size:
                raise ValueError(
                    f"algorithm.batch_size must divide rollout_steps times copies, got {self.algorithm.batch_size} "
                    f"for {rollout}"
                )
        return self


def policy_spec_names() -> tuple[str, ...]:
    """Names of the shipped specifications."""
    return shipped_names(_FOLDER)


def load_policy_spec(name: str | Path, overrides: Mapping[str, Any] | None = None) -> PolicySpec:
    """A shipped specification or a user's, with dotted overrides on top.

    Args:
        name: a shipped name, e.g. `patchtst_execution`, or the path of a `.yaml` file.
        overrides: values by dotted key, e.g. `{"environment.cost_rate": 0.002}`.

    Raises:
        SettingsError: unknown name, unreadable YAML, unknown key or value out of range.
    """
    tree = named_mapping(str(name), _FOLDER, kind="policy specification")
    return PolicySpec.checked(tree, overrides or {}, f"specification {name}")
