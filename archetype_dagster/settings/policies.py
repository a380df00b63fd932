"""Training of policies on any Gymnasium environment, and of the autoencoder before that."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.phases import PpoSettings
from archetype_dagster.settings.section import PositiveFloat, PositiveInt, Section


class PretrainingSettings(Section):
    """Teaching an autoencoder to reconstruct windows before a policy uses it."""

    epochs: PositiveInt = Field(20, description="Passes over the windows.")
    batch_size: PositiveInt = Field(256, description="Windows per gradient step.")
    learning_rate: PositiveFloat = Field(1e-3, description="Adam step size.")
    held_out_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Share of the windows, the newest, that the weights kept are chosen by."
    )


class CleanRlAlgorithm(PpoSettings):
    """PPO in the style of CleanRL, whatever it trains."""

    hidden_sizes: tuple[PositiveInt, ...] = Field((64,), description="Units of the layers of actor and critic each.")
    rollout_steps: PositiveInt = Field(128, description="Steps of each copy per rollout.")
    minibatches: PositiveInt = Field(4, description="Gradient steps per pass over a rollout.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="Discount per step.")
    learning_rate: PositiveFloat = Field(2.5e-4, description="Adam step size.")
    anneal_learning_rate: bool = Field(True, description="Let the step size fall linearly to 0 over the budget.")
    normalise_advantages: bool = Field(True, description="Scale each minibatch's advantages to mean 0, deviation 1.")
    max_gradient_norm: PositiveFloat = Field(0.5, description="Norm to which gradients are clipped.")

    @model_validator(mode="after")
    def _minibatches_of_two(self) -> Self:
        if self.normalise_advantages and self.rollout_steps < 2 * self.minibatches:
            raise ValueError(
                "normalise_advantages needs two steps in a minibatch: rollout_steps must be at least 2 minibatches, "
                f"got {self.rollout_steps} and {self.minibatches}"
            )
        return self


class CleanRlSettings(CleanRlAlgorithm):
    """PPO in the style of CleanRL over a backbone."""

    backbone_alias: str = Field("TransformerBackbone", description="Alias of the trunk.")
    sequence_length: PositiveInt = Field(30, description="Rows of an observation's window, the current one included.")
    features_dim: PositiveInt = Field(128, description="Features that the trunk hands to actor and critic.")
    backbone_kwargs: dict[str, Any] = Field(default_factory=dict, description="The trunk's own arguments.")
    total_steps: PositiveInt = Field(1_000_000, description="Environment steps, all copies together.")
