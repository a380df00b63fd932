"""Training of Phase II where the embedding is continuous: there is no table, so embeddings are tried out.

Each update draws embeddings around the policy's mean, decodes them on the device and is paid what their actions
earn. Demonstrations come from hindsight; they are a training signal and never reach the policy's input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import SettingsError
from archetype_dagster.market.dataset import HorizonBatch, MarketDataset
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.objectives import Parts
from archetype_dagster.rl.ppo import clipped_surrogate
from archetype_dagster.rl.training_loop import Objective, TrainingPlan, acting, maximise
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.selection.returns_table import (
    CHUNK_STARTS,
    demonstration_embeddings,
    plan_returns,
    training_starts,
)
from archetype_dagster.selection.training import VALIDATION_SCORE
from archetype_dagster.settings import PlannerSettings, PpoSettings, SelectionSettings
from archetype_dagster.types import IndexArray, Progress


def train_continuous_selector(
    train: MarketDataset,
    validation: MarketDataset,
    codebook: Codebook,
    planner: PlannerSettings,
    settings: SelectionSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> ContinuousSelector:
    """Train a Gaussian policy over embeddings by Eq. (5) and keep the weights of its best validation.

    The horizon's action is the embedding z itself. Where codes would give KL(label || pi) = -log pi(label), the
    label here is the encoder's embedding of the horizon's demonstration and -log pi its negative log-density, a
    squared distance in units of the policy's spread. Returns are those of the decoded actions, from flat.

    `objective: expected` draws as many embeddings per horizon as there would be codes, so that both see equally
    many returns, and follows the score function with the mean of the other draws as baseline (Kool, van Hoof and
    Welling 2019). `ppo` draws one and takes the clipped surrogate with the critic as baseline.

    Args:
        train: training split; horizons start at the settings' stride.
        validation: validation split; horizons at stride h.
        codebook: the frozen encoder and decoder, trained with a continuous embedding; moved to `device`.
        planner: how the demonstrations are planned.
        settings: objective, budget and network.
        seed: seed of the run.
        device: where to train.
        resume: where to save the state after each validation.
        progress: told the steps done.

    Returns:
        the selector on the CPU. Its history has, per validation, `validation_return` (mean return of the policy's
        mean, percent of notional), `validation_nll` (nats) and the means of the training objective's parts.

    Raises:
        SettingsError: a codebook with codes.
        MarketDataError: a split without a single whole horizon.
        ArchetypeError: the training diverged.
    """
    if codebook.settings.embedding != "continuous":
        raise SettingsError(
            "train_continuous_selector needs a codebook of codebook.embedding 'continuous', "
            f"got {codebook.settings.embedding!r}; train_selector chooses among its codes"
        )
    with seeded_initialisation(seed, "selection"):
        network = GaussianSelectorNetwork(
            train.num_features, codebook.settings.code_dim, settings.hidden_sizes, **settings.market_input
        )
    network.to(device)
    codebook = codebook.to(device)
    starts = training_starts(train, settings.stride_bars, split="training")
    watched_starts = training_starts(validation, validation.horizon_bars, split="validation")
    learnt = _Starts.of(train, starts, codebook, planner, network.lookback_bars)
    watched = _Starts.of(validation, watched_starts, codebook, planner, network.lookback_bars)
    network.measure(learnt.labels)
    whole = watched.batch(torch.arange(len(watched.starts)))

    def prepare(indices: Tensor, generator: torch.Generator) -> Objective:
        horizons, market = learnt.batch(indices), learnt.market(indices)
        draws = codebook.settings.num_codes if settings.objective == "expected" else 1
        with acting(network):
            means, values = network(market)
            units = network.sample(means, draws, generator)
            returns = horizons.returns(network.embeddings(units))
            drawn_from = network.log_density(means.unsqueeze(1), units)
        labels = network.units(horizons.labels)

        def objective() -> tuple[Tensor, Parts]:
            means, critic = network(market)
            log_density = network.log_density(means.unsqueeze(1), units)
            nll = -network.log_density(means, labels).mean()
            if settings.objective == "expected":
                gain, parts = _score_gain(log_density, returns)
            else:
                gain, parts = _clipped_gain(log_density, drawn_from, returns, values, critic, settings.ppo)
                gain = gain + settings.ppo.entropy_weight * network.entropy()
            return gain - settings.alpha * nll, {**parts, "nll": nll, "entropy": network.entropy()}

        return objective

    def validate() -> dict[str, float]:
        with torch.no_grad():
            means = watched.windows.through(lambda market: network(market)[0], watched.rows)
            nll = -network.log_density(means, network.units(whole.labels)).mean()
            earned = whole.returns(network.embeddings(means).unsqueeze(1))
        return {VALIDATION_SCORE: earned.double().mean().item(), "validation_nll": nll.item()}

    plan = TrainingPlan.of("selection", settings, num_horizons=len(learnt.starts), horizon_bars=train.horizon_bars)
    history = maximise(
        network,
        plan,
        prepare=prepare,
        validate=validate,
        score=VALIDATION_SCORE,
        seed=seed,
        resume=resume,
        progress=progress,
    )
    return ContinuousSelector(network.cpu(), history)


def _score_gain(log_density: Tensor, returns: Tensor) -> tuple[Tensor, Parts]:
    """The draws' mean return, whose gradient is that of the policy's expected return: both float (B, S), S > 1."""
    draws = returns.shape[1]
    advantages = (returns - returns.mean(dim=1, keepdim=True)) * draws / (draws - 1)
    # The density less itself is zero, so the value is the returns' while the gradient is the score's.
    expected = returns.mean() + ((log_density - log_density.detach()) * advantages).mean()
    return expected, {"expected_return": expected}


def _clipped_gain(
    log_density: Tensor, drawn_from: Tensor, returns: Tensor, values: Tensor, critic: Tensor, ppo: PpoSettings
) -> tuple[Tensor, Parts]:
    """Clipped surrogate less the weighted value loss, for one draw per horizon: (B, 1) thrice, (B,) twice."""
    advantages = returns - values.unsqueeze(1)
    surrogate = clipped_surrogate(log_density, drawn_from, advantages, clip_range=ppo.clip_range).mean()
    value_loss = (critic - returns.squeeze(1)).square().mean()
    return surrogate - ppo.value_weight * value_loss, {"surrogate": surrogate, "value_loss": value_loss}


@dataclass(frozen=True)
class _Horizons:
    """B horizons: label embeddings (B, D) on the device, and what decoding needs."""

    labels: Tensor
    bars: HorizonBatch
    codebook: Codebook
    max_position: float

    def returns(self, embeddings: Tensor) -> Tensor:
        """What S embeddings (B, S, D) would earn on each horizon, from flat: float32 (B, S), percent of m p_0."""
        actions, _ = self.codebook.decode_embeddings(self.bars.states, embeddings)
        earned = plan_returns(actions, self.bars, max_position=self.max_position)
        return torch.from_numpy(earned).to(self.labels.device, torch.float32)


@dataclass(frozen=True)
class _Starts:
    """A split's horizon starts, what is read there and the embeddings (n, D) of their demonstrations on the device."""

    dataset: MarketDataset
    starts: IndexArray
    codebook: Codebook
    windows: MarketWindows
    labels: Tensor

    @classmethod
    def of(
        cls,
        dataset: MarketDataset,
        starts: IndexArray,
        codebook: Codebook,
        planner: PlannerSettings,
        lookback_bars: int,
    ) -> _Starts:
        labels = [
            demonstration_embeddings(
                dataset.horizons(starts[first : first + CHUNK_STARTS]),
                codebook,
                planner,
                max_position=dataset.max_position,
            )
            for first in range(0, len(starts), CHUNK_STARTS)
        ]
        windows = MarketWindows(dataset, lookback_bars, codebook.device)
        return cls(dataset, starts, codebook, windows, torch.from_numpy(np.concatenate(labels)).to(codebook.device))

    @property
    def rows(self) -> Tensor:
        """The starts on the device."""
        return torch.from_numpy(self.starts).to(self.labels.device)

    def market(self, indices: Tensor) -> Tensor:
        """What is read on some starts, numbered by indices (B,): float32 (B, F) or (B, L, F)."""
        return self.windows.at(self.rows[indices.to(self.labels.device)])

    def batch(self, indices: Tensor) -> _Horizons:
        bars = self.dataset.horizons(self.starts[indices.numpy()])
        labels = self.labels[indices.to(self.labels.device)]
        return _Horizons(labels, bars, self.codebook, self.dataset.max_position)
