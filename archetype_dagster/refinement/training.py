"""Training of Phase III: when to override the archetype, as an optimal stopping problem."""

from __future__ import annotations

import math

import numpy as np
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.refinement.adapter import context_size, greedy_override
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.refinement.table import RefinementTable, build_refinement_table
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.objectives import Parts, hindsight_cross_entropy, refinement_objective
from archetype_dagster.rl.ppo import ppo_objective, sample_stopping
from archetype_dagster.rl.stopping import masked_log_probabilities
from archetype_dagster.rl.training_loop import Objective, TrainingPlan, acting, batch_passes, maximise
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection.returns_table import training_starts
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import RefinementSettings
from archetype_dagster.types import ActionArray, IndexArray, Progress, StateArray

VALIDATION_SCORE = "validation_return"


def train_refiner(
    train: MarketDataset,
    validation: MarketDataset,
    codebook: Codebook,
    selector: Selector,
    settings: RefinementSettings,
    *,
    beta_1: float,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> Refiner:
    """Train the refiner of Eq. (9) and keep the weights of its best validation.

    The base plan of a horizon is the selector's greedy code, decoded from flat. Training horizons are spread
    evenly over all starts of the split, no more than the budget visits.

    Args:
        train: training split.
        validation: validation split, visited at stride h.
        codebook: the frozen archetypes.
        selector: the frozen selector.
        settings: objective, override rule, budget and network.
        beta_1: weight of the regret in Eq. (8).
        seed: seed of the run.
        device: where to train.
        resume: where to save the state after each validation.
        progress: told the starts prepared, then the steps done.

    Returns:
        the refiner on the CPU. Its history has, per validation, `validation_return` (mean return with the greedy
        override, percent of notional), `validation_base_return` (without), `validation_override_rate`
        (share of horizons), and the means of the training objective's parts.

    Raises:
        MarketDataError: a split without a single whole horizon.
        ArchetypeError: the training diverged.
    """
    codebook = codebook.to(device)
    visits = math.ceil(settings.total_steps / (train.horizon_bars * batch_passes(settings)))
    starts = spread_evenly(training_starts(train, 1, split="training"), visits)
    watched_starts = training_starts(validation, validation.horizon_bars, split="validation")
    table = build_refinement_table(train, starts, codebook, selector, settings, beta_1=beta_1, progress=progress)
    watched = build_refinement_table(
        validation, watched_starts, codebook, selector, settings, beta_1=beta_1, progress=progress
    )
    with seeded_initialisation(seed, "refinement"):
        network = RefinerNetwork(
            train.num_features,
            context_size(table.codes_embedding.shape[1]),
            settings.hidden_size,
            **settings.market_input,
        )
    network.start_patient(train.horizon_bars)
    network.to(device)
    horizons = _HorizonTensors(train, table, network.lookback_bars, device)
    watched_horizons = _HorizonTensors(validation, watched, network.lookback_bars, device)

    def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
        chosen = indices.numpy()
        market, context = horizons.windows.at(horizons.rows(chosen)), horizons.context(chosen)
        legal, rewards, targets = horizons.outcomes(chosen)

        def policy() -> tuple[torch.Tensor, torch.Tensor]:
            logits, values = network(market, context)
            return masked_log_probabilities(logits, legal), values

        if settings.objective == "expected":
            return lambda: refinement_objective(
                policy()[0], rewards, targets, gamma=settings.gamma, beta_2=settings.beta_2
            )
        with acting(network):
            log_probs, values = policy()
            rollout = sample_stopping(
                log_probs, values, rewards, generator, gamma=settings.gamma, gae_lambda=settings.ppo.gae_lambda
            )

        def sampled_objective() -> tuple[torch.Tensor, Parts]:
            log_probs, values = policy()
            gain, parts = ppo_objective(log_probs, values, rollout, settings.ppo)
            cross_entropy = hindsight_cross_entropy(log_probs, targets)
            return gain - settings.beta_2 * cross_entropy, {**parts, "cross_entropy": cross_entropy}

        return sampled_objective

    def validate() -> dict[str, float]:
        steps, gains = [], []
        for first in range(0, len(watched), settings.batch_size):
            chosen = np.arange(first, min(first + settings.batch_size, len(watched)))
            encoded = watched_horizons.encoded(network, chosen)
            with torch.no_grad():
                logits, _ = network.judge(encoded, watched_horizons.context(chosen))
            step, direction = greedy_override(logits, watched.legal[chosen])
            steps.append(step)
            gains.append(override_gains(watched, chosen, step, direction))
        base = watched.base_return.mean().item()
        return {
            VALIDATION_SCORE: base + np.concatenate(gains).mean(dtype=np.float64).item(),
            "validation_base_return": base,
            "validation_override_rate": (np.concatenate(steps) >= 0).mean().item(),
        }

    plan = TrainingPlan.of("refinement", settings, num_horizons=len(table), horizon_bars=train.horizon_bars)
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
    return Refiner(network.cpu(), history)


def spread_evenly(starts: IndexArray, count: int) -> IndexArray:
    """At most `count` of the starts, evenly spaced, in order: int64."""
    if count >= len(starts):
        return starts
    return starts[np.linspace(0, len(starts) - 1, count).round().astype(np.int64)]


def override_gains(
    table: RefinementTable, indices: IndexArray, steps: IndexArray, directions: ActionArray
) -> StateArray:
    """What the overrides of some horizons earn over the base plan: float32 (B,), percent of notional, 0 for none.

    Args:
        table: the horizons.
        indices: int64 (B,), which of them.
        steps: int64 (B,), -1 for none.
        directions: int8 (B,), -1 short, +1 long, 0 for none.
    """
    return np.where(steps >= 0, table.gains[indices, steps, (directions > 0).astype(np.int64)], np.float32(0))


class _HorizonTensors:
    """Batches of a table's horizons on the device; only the dataset's rows are kept there."""

    def __init__(
        self, dataset: MarketDataset, table: RefinementTable, lookback_bars: int, device: torch.device
    ) -> None:
        self.windows = MarketWindows(dataset, lookback_bars, device)
        self._table = table
        self._device = device
        self._bars = torch.arange(dataset.horizon_bars, device=device)

    def rows(self, indices: IndexArray) -> torch.Tensor:
        """The dataset's rows of some horizons, int64 (B, h)."""
        return torch.from_numpy(self._table.starts[indices]).to(self._device).unsqueeze(-1) + self._bars

    def context(self, indices: IndexArray) -> torch.Tensor:
        """Their context, float32 (B, h, C)."""
        return torch.from_numpy(self._table.context(indices)).to(self._device)

    def encoded(self, network: RefinerNetwork, indices: IndexArray) -> torch.Tensor:
        """What the network's first half makes of each bar, without gradients: float32 (B, h, D)."""
        rows = self.rows(indices)
        return self.windows.through(network.market, rows.flatten()).reshape(*rows.shape, network.market.size)

    def outcomes(self, indices: IndexArray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Legal overrides (B, h, 2), their rewards (B, h, 2) and the targets (B, h, 3)."""
        table = self._table
        legal, rewards, targets = (
            torch.from_numpy(values[indices]).to(self._device) for values in (table.legal, table.rewards, table.targets)
        )
        return legal, rewards, targets
