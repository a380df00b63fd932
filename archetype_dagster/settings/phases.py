"""The planner and the three phases of learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from archetype_dagster.errors import SettingsError
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


class BackboneSettings(Section):
    """What a phase's network reads of the market: the current bar, or a window of bars through a backbone."""

    backbone: str | None = Field(None, description="Alias of the backbone; empty reads the current bar alone.")
    lookback_bars: PositiveInt = Field(1, description="Bars of the backbone's window, the current one included.")
    backbone_kwargs: dict[str, Any] = Field(default_factory=dict, description="The backbone's own arguments.")

    @model_validator(mode="after")
    def _window_for_a_backbone(self) -> Self:
        check_backbone(self.backbone, self.lookback_bars, self.backbone_kwargs)
        return self

    @property
    def market_input(self) -> dict[str, Any]:
        """The three as arguments of a network."""
        names = ("backbone", "lookback_bars", "backbone_kwargs")
        return {name: getattr(self, name) for name in names}


def check_backbone(backbone: str | None, lookback_bars: int, backbone_kwargs: Mapping[str, Any]) -> None:
    """SettingsError unless a window goes with a backbone and the current bar alone with none."""
    if backbone is not None and lookback_bars < 2:
        raise SettingsError(
            f"backbone {backbone!r} reads a window: lookback_bars must be at least 2, got lookback_bars={lookback_bars}"
        )
    if backbone is None and lookback_bars != 1:
        raise SettingsError(f"lookback_bars must be 1 without a backbone, got lookback_bars={lookback_bars}")
    if backbone is None and backbone_kwargs:
        raise SettingsError(f"backbone_kwargs need a backbone, got backbone_kwargs={dict(backbone_kwargs)}")
    given = sorted({"input_features", "sequence_length", "output_dim"} & set(backbone_kwargs))
    if given:
        raise SettingsError(
            f"backbone_kwargs must not hold {given}: rows and width of a window follow from lookback_bars and the "
            "features, and the backbone's output from the network's units"
        )


class SelectionSettings(BackboneSettings):
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


class RefinementSettings(BackboneSettings):
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
