"""Training of Phase II on the table of archetype returns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.objectives import Parts, label_divergence, selection_objective
from archetype_dagster.rl.ppo import ppo_objective, sample_codes
from archetype_dagster.rl.training_loop import Objective, TrainingPlan, acting, maximise
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.returns_table import ArchetypeReturns, ReturnsTable
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import SelectionSettings
from archetype_dagster.types import Progress

VALIDATION_SCORE = "validation_return"


def train_selector(
    train: MarketDataset,
    validation: MarketDataset,
    table: ArchetypeReturns,
    settings: SelectionSettings,
    *,
    horizon_bars: int,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> Selector:
    """Train the selector of Eq. (5) and keep the weights of its best validation.

    Args:
        train: training split the table was built from.
        validation: validation split likewise.
        table: returns and labels of both.
        settings: objective, budget and network.
        horizon_bars: h, by which the budget counts.
        seed: seed of the run.
        device: where to train.
        resume: where to save the state after each validation.
        progress: told the steps done.

    Returns:
        the selector on the CPU. Its history has, per validation, `validation_return` (mean return of the greedy
        choice, percent of notional), `validation_kl` (nats), and the means of the training objective's parts.

    Raises:
        ArtifactError: the table belongs to another dataset.
        ArchetypeError: the training diverged.
    """
    table.train.check_made_from(train)
    table.validation.check_made_from(validation)
    with seeded_initialisation(seed, "selection"):
        network = SelectorNetwork(train.num_features, table.num_codes, settings.hidden_sizes, **settings.market_input)
    network.to(device)
    starts = _StartTensors(train, table.train, network.lookback_bars, device)
    watched = _StartTensors(validation, table.validation, network.lookback_bars, device)

    def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
        market, returns, labels = starts.rows(indices.to(device))
        if settings.objective == "expected":
            return lambda: selection_objective(network(market)[0], returns, labels, settings.alpha)
        with acting(network):
            logits, values = network(market)
            rollout = sample_codes(torch.log_softmax(logits, dim=-1), values, returns, generator)

        def sampled_objective() -> tuple[torch.Tensor, Parts]:
            logits, values = network(market)
            log_probs = torch.log_softmax(logits, dim=-1)
            gain, parts = ppo_objective(log_probs.unsqueeze(1), values.unsqueeze(1), rollout, settings.ppo)
            divergence = label_divergence(log_probs, labels)
            return gain - settings.alpha * divergence, {**parts, "kl": divergence}

        return sampled_objective

    def validate() -> dict[str, float]:
        log_probs = torch.log_softmax(watched.through(lambda market: network(market)[0]), dim=-1)
        earned = watched.returns.gather(-1, log_probs.argmax(-1, keepdim=True))
        return {
            VALIDATION_SCORE: earned.double().mean().item(),
            "validation_kl": label_divergence(log_probs, watched.labels).item(),
        }

    plan = TrainingPlan.of("selection", settings, num_horizons=len(table.train), horizon_bars=horizon_bars)
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
    return Selector(network.cpu(), history)


class _StartTensors:
    """What is read on a table's starts, their returns and labels, on the device."""

    def __init__(self, dataset: MarketDataset, table: ReturnsTable, lookback_bars: int, device: torch.device) -> None:
        self.windows = MarketWindows(dataset, lookback_bars, device)
        self.starts = torch.from_numpy(table.starts).to(device)
        self.returns = torch.from_numpy(table.returns).to(device, torch.float32)
        self.labels = torch.from_numpy(table.labels).to(device)

    def rows(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.windows.at(self.starts[indices]), self.returns[indices], self.labels[indices]

    def through(self, network: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return self.windows.through(network, self.starts)
