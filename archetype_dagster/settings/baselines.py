"""The strategies of the paper's Table 1 that the policy is compared with."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from archetype_dagster.settings.hierarchical import EarnHftSettings, MacroHftSettings
from archetype_dagster.settings.phases import PpoSettings
from archetype_dagster.settings.section import Fraction, PositiveFloat, PositiveInt, Section


class MacdSettings(Section):
    """Moving-average convergence and divergence of the mark."""

    fast_bars: PositiveInt = Field(12, description="Span of the fast average.")
    slow_bars: PositiveInt = Field(26, description="Span of the slow average.")
    signal_bars: PositiveInt = Field(9, description="Span of the signal line over the difference of the two.")

    @model_validator(mode="after")
    def _fast_is_faster(self) -> Self:
        if self.fast_bars >= self.slow_bars:
            raise ValueError(
                f"fast_bars must be below slow_bars, got fast_bars={self.fast_bars}, slow_bars={self.slow_bars}"
            )
        return self


class ImbalanceSettings(Section):
    """Imbalance of the volume offered on the two sides of the book."""

    quantiles: tuple[Annotated[float, Field(ge=0.5, lt=1)], ...] = Field(
        (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
        min_length=1,
        description="Training quantiles tried as the threshold; the best one on validation is kept.",
    )


class DqnSettings(Section):
    """Deep Q-learning, of which CDQNRP is a variant."""

    buffer_steps: PositiveInt = Field(100_000, description="Steps that the replay buffer holds.")
    learning_starts: PositiveInt = Field(10_000, description="Steps collected by random actions before learning.")
    batch_size: PositiveInt = Field(256, description="Transitions per gradient step.")
    gradient_steps: PositiveInt = Field(1, description="Gradient steps after each step of all copies.")
    target_interval_steps: PositiveInt = Field(12_800, description="Steps between copies to the target network.")
    exploration_fraction: Fraction = Field(0.3, description="Share of the budget over which exploration falls.")
    exploration_final: Fraction = Field(0.05, description="Probability of random actions after that.")
    target_perturbation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="CDQNRP: each interval is drawn uniformly within this fraction of target_interval_steps."
    )


class RolloutSettings(Section):
    """What PPO collects between its updates."""

    bars: PositiveInt = Field(64, description="Steps of each copy per rollout.")
    batch_size: Annotated[int, Field(ge=2)] = Field(1024, description="Steps per gradient step.")


class RecurrentSettings(Section):
    """The encoder of CLSTM-PPO."""

    lookback_bars: PositiveInt = Field(30, description="Bars of the window, the current one included.")
    hidden_size: PositiveInt = Field(32, description="Units of each of the two LSTMs.")


class BaselineSettings(Section):
    """Budgets and networks of the learners, and the constants of the rules."""

    total_steps: PositiveInt = Field(3_000_000, description="Environment steps of each learner.")
    num_envs: PositiveInt = Field(64, description="Copies of the market that a learner steps at a time.")
    episode_bars: PositiveInt = Field(720, description="Bars after which an episode of training is truncated.")
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="Discount per bar.")
    learning_rate: PositiveFloat = Field(3e-4, description="Adam step size.")
    hidden_sizes: tuple[PositiveInt, ...] = Field((128, 128), min_length=1, description="Units of the MLPs' layers.")
    evaluations: PositiveInt = Field(10, description="Validation passes spread over the training.")
    macd: MacdSettings = Field(MacdSettings(), description="MACD.")
    imbalance: ImbalanceSettings = Field(ImbalanceSettings(), description="Order-imbalance volume (IV).")
    dqn: DqnSettings = Field(DqnSettings(), description="DQN and CDQNRP.")
    ppo: PpoSettings = Field(PpoSettings(), description="PPO and CLSTM-PPO: objective and advantages.")
    rollout: RolloutSettings = Field(RolloutSettings(), description="PPO and CLSTM-PPO: rollouts and batches.")
    recurrent: RecurrentSettings = Field(RecurrentSettings(), description="CLSTM-PPO: encoder.")
    earnhft: EarnHftSettings = Field(EarnHftSettings(), description="EarnHFT.")
    macrohft: MacroHftSettings = Field(MacroHftSettings(), description="MacroHFT.")
