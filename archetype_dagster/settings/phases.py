"""The planner and the three phases of learning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from archetype_dagster.settings.section import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section

TradeConstraint = Literal["single_change", "round_trip"]
Objective = Literal["expected", "ppo"]
OverrideRule = Literal["step", "hold"]
DecoderKind = Literal["lstm", "bilstm"]
Decoding = Literal["argmax", "single_change"]
Embedding = Literal["vq", "clustered", "continuous"]


class PlannerSettings(Section):
    """Hindsight demonstrations (Algorithm 1)."""

    horizon_bars: Annotated[int, Field(ge=2)] = Field(72, description="Horizon h in bars.")
    num_trajectories: PositiveInt = Field(30_000, description="Training chunks sampled and planned.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Planner's discount per bar.")
    trade_constraint: TradeConstraint = Field(
        "single_change", description="At most one position change, or one round trip, per horizon."
    )


class CodebookSettings(Section):
    """Phase I: the encoder-decoder, and what stands between its halves."""

    embedding: Embedding = Field(
        "vq",
        description="Codes learnt with the decoder, k-means centres of a continuous encoder-decoder, or no codes.",
    )
    num_codes: Annotated[int, Field(ge=2)] = Field(10, description="Archetypes K.")
    code_dim: PositiveInt = Field(16, description="Dimension of a code.")
    hidden_size: PositiveInt = Field(128, description="Units of encoder and decoder LSTM.")
    pooling: Literal["last", "attention"] = Field("last", description="How the encoder summarises a horizon.")
    decoder: DecoderKind = Field(
        "lstm", description="Causal lstm, or bilstm, which reads the future and is flagged hindsight."
    )
    decoding: Decoding = Field("argmax", description="Free argmax per step, or at most one change per horizon.")
    commitment: NonNegativeFloat = Field(0.25, description="Commitment weight beta_0 of Eq. (4).")
    pretrain_epochs: Annotated[int, Field(ge=0)] = Field(
        1, description="Epochs without quantisation before the codes start."
    )
    epochs: PositiveInt = Field(100, description="Epochs after those; with quantisation where the embedding is vq.")
    batch_size: PositiveInt = Field(256, description="Trajectories per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    initialisation: Literal["kmeans", "direction_aware"] = Field(
        "kmeans", description="k-means over encodings, or k-means inside long, short and flat groups."
    )
    dead_code_epochs: PositiveInt = Field(2, description="A code unused for this many epochs is re-seeded.")
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.05, description="Share of trajectories held out to watch the reconstruction."
    )

    @property
    def hindsight(self) -> bool:
        """True where the decoder reads the horizon's future."""
        return self.decoder == "bilstm"


class PpoSettings(Section):
    """Clipped-surrogate settings used where `objective: ppo`."""

    clip_range: PositiveFloat = Field(0.2, description="Clipping range of the probability ratio.")
    value_weight: NonNegativeFloat = Field(0.5, description="Weight of the value loss.")
    entropy_weight: NonNegativeFloat = Field(0.01, description="Weight of the entropy bonus.")
    epochs: PositiveInt = Field(4, description="Passes over each rollout.")
    gae_lambda: Fraction = Field(0.95, description="Lambda of generalised advantage estimation.")


class SelectionSettings(Section):
    """Phase II: choosing an archetype at a horizon's start."""

    objective: Objective = Field("expected", description="Exact expected return, or sampled PPO.")
    alpha: NonNegativeFloat = Field(1.0, description="Weight of the KL term of Eq. (5).")
    total_steps: PositiveInt = Field(3_000_000, description="Environment steps; a horizon counts h steps.")
    stride_bars: PositiveInt = Field(6, description="Bars between the training starts of the returns table.")
    batch_size: PositiveInt = Field(64, description="Horizons per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_sizes: tuple[PositiveInt, ...] = Field((128, 64), description="Units of the MLP's layers.")
    evaluations: PositiveInt = Field(20, description="Validation passes spread over the training.")
    ppo: PpoSettings = Field(PpoSettings(), description="PPO settings.")


class RefinementSettings(Section):
    """Phase III: overriding the archetype at most once per horizon."""

    objective: Objective = Field("expected", description="Exact optimal-stopping objective, or sampled PPO.")
    override: OverrideRule = Field("step", description="Override one bar, or hold until the base's next trade.")
    beta_1: NonNegativeFloat | None = Field(None, description="Regret weight of Eq. (8); empty takes the pair's value.")
    beta_2: NonNegativeFloat = Field(1.0, description="Weight of the cross-entropy of Eq. (9).")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="Discount per bar inside a horizon.")
    top_adaptations: PositiveInt = Field(5, description="Hindsight adaptations kept per horizon (Eq. 7).")
    total_steps: PositiveInt = Field(1_000_000, description="Environment steps; a horizon counts h steps.")
    batch_size: PositiveInt = Field(128, description="Horizons per gradient step.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_size: PositiveInt = Field(128, description="Units of the market trunk.")
    evaluations: PositiveInt = Field(20, description="Validation passes spread over the training.")
    ppo: PpoSettings = Field(PpoSettings(), description="PPO settings.")
