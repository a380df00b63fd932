"""MacroHFT (Zong et al., KDD 2024): sub-agents per market context, blended by a hyper-agent with a memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from torch import nn

from archetype_dagster.baselines.chunks import cut_chunks, rank_labels, trailing_context
from archetype_dagster.baselines.hyper_agent import BlendTraining, EpisodicMemory, blended, train_blend
from archetype_dagster.baselines.learning_market import LearningMarket, TransitionBatches
from archetype_dagster.baselines.stages import StagedTraining
from archetype_dagster.baselines.strategy import mean_reward, rolled_out
from archetype_dagster.baselines.value_learning import VALIDATION_SCORE, AgentTraining
from archetype_dagster.baselines.value_networks import BlendNetwork, DuellingNetwork, in_blocks
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import reward_table
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import ActionArray, Progress, StateArray

WEIGHTS_FILE: Final = "macrohft.safetensors"
_CONTEXT_SIZE: Final = 2
_CONTEXT_CLIP: Final = 5.0


class MacroHftNetwork(nn.Module):
    """Sub-agents, hyper-agent and the scale of the context, fitted on the training split.

    Args:
        num_features: market features F.
        hidden_sizes: units of every network's layers.
        num_agents: sub-agents n.
        context_bars: past bars that trend and volatility are read from.
    """

    context_mean: torch.Tensor
    context_std: torch.Tensor

    def __init__(self, num_features: int, hidden_sizes: Sequence[int], num_agents: int, context_bars: int) -> None:
        super().__init__()
        self.shape = {
            "num_features": num_features,
            "hidden_sizes": list(hidden_sizes),
            "num_agents": num_agents,
            "context_bars": context_bars,
        }
        self.context_bars = context_bars
        self.agents = nn.ModuleList(
            DuellingNetwork(num_features, _CONTEXT_SIZE, hidden_sizes) for _ in range(num_agents)
        )
        self.blend = BlendNetwork(num_features, _CONTEXT_SIZE, hidden_sizes, num_agents)
        self.register_buffer("context_mean", torch.zeros(_CONTEXT_SIZE, dtype=torch.float64))
        self.register_buffer("context_std", torch.ones(_CONTEXT_SIZE, dtype=torch.float64))

    def fit_context(self, train: MarketDataset) -> None:
        """Take mean and standard deviation of trend and volatility from the training split; a constant is kept."""
        context = trailing_context(train, self.context_bars)
        std = context.std(axis=0)
        self.context_mean.copy_(torch.from_numpy(context.mean(axis=0)))
        self.context_std.copy_(torch.from_numpy(np.where(std > 0, std, 1.0)))

    def inputs(self, dataset: MarketDataset) -> StateArray:
        """States and the scaled, clipped trend and volatility of the past bars: float32 (T, F + 2)."""
        context = trailing_context(dataset, self.context_bars)
        scaled = (context - self.context_mean.cpu().numpy()) / self.context_std.cpu().numpy()
        clipped = np.clip(scaled, -_CONTEXT_CLIP, _CONTEXT_CLIP).astype(np.float32)
        return np.concatenate([dataset.states, clipped], axis=1)

    def agent_values(self, inputs: StateArray) -> torch.Tensor:
        """Action values of every sub-agent for every held action: (T, F + 2) -> float32 (T, n, 3, 3)."""
        device = self.context_mean.device
        return in_blocks(lambda block: torch.stack([agent(block) for agent in self.agents], dim=1), inputs, device)


@dataclass(frozen=True)
class MacroHft:
    """The fitted strategy; the hyper-agent weighs the sub-agents anew on every bar.

    Attributes:
        network: sub-agents and hyper-agent.
        history: one row per validation of each stage.
    """

    network: MacroHftNetwork
    history: pl.DataFrame

    @property
    def name(self) -> str:
        """Key of the strategy."""
        return "macrohft"

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """The action of every row, int8 (T,); row t's depends on states and prices of rows up to t alone."""
        inputs = self.network.inputs(dataset)
        return blended_actions(self.network.blend, inputs, self.network.agent_values(inputs), dataset)

    def save(self, directory: Path) -> None:
        """Write weights and history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: MacroHftNetwork(**facts)))


def fit_macrohft(
    train: MarketDataset,
    validation: MarketDataset,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> MacroHft:
    """Train one sub-agent per label of trend and of volatility, then the hyper-agent that blends them.

    Args:
        train: training split; all networks and the scale of the context are learned on it.
        validation: validation split; weights are chosen on it.
        settings: budget, shared over the stages, and the method's settings.
        seed: seed of the run.
        device: where to train.
        resume: one state for all stages, saved after each validation.
        progress: told the steps of each stage.

    Returns:
        the strategy on the CPU.

    Raises:
        MarketDataError: a split without enough chunks to label.
        ArchetypeError: the training diverged.
    """
    method, stages = settings.macrohft, StagedTraining(resume)
    with seeded_initialisation(seed, "macrohft"):
        network = MacroHftNetwork(train.num_features, settings.hidden_sizes, 2 * method.num_labels, method.context_bars)
    network.fit_context(train)
    network.to(device)
    learning, watched = (
        LearningMarket(
            split,
            network.inputs(split),
            reward_table(split),
            cut_chunks(split, method.chunk_bars, at_least=method.num_labels),
        )
        for split in (train, validation)
    )
    batches = TransitionBatches(learning, gamma=settings.gamma, device=device)
    training = AgentTraining(learning, watched, batches, settings, method, stages, seed, progress)
    contexts = {
        "trend": (learning.chunks.slopes, watched.chunks.slopes),
        "volatility": (learning.chunks.volatilities, watched.chunks.volatilities),
    }
    for number, (kind, label) in enumerate(itertools.product(contexts, range(method.num_labels))):
        own = [(rank_labels(values, method.num_labels) == label).astype(np.float64) for values in contexts[kind]]
        training.run(
            f"macrohft_{kind}_{label}",
            network.agents[number],
            share=method.agents_share / len(network.agents),
            train_weights=own[0],
            validation_weights=own[1],
        )
    values = [network.agent_values(market.inputs) for market in (learning, watched)]
    memory = EpisodicMemory(method.memory_size, method.memory_neighbours)
    blend = BlendTraining(network.blend, memory).to(device)

    def validate() -> dict[str, float]:
        taken = blended_actions(network.blend, watched.inputs, values[1], validation)
        return {VALIDATION_SCORE: mean_reward(taken, validation, watched.table)}

    stages.run(
        "macrohft_blend",
        blend,
        lambda point: train_blend(
            blend,
            batches,
            values[0],
            np.flatnonzero(learning.table.usable),
            validate,
            settings,
            seed=seed,
            resume=point,
            progress=progress,
        ),
    )
    return MacroHft(network.cpu(), stages.history)


def blended_actions(
    blend: BlendNetwork, inputs: StateArray, agent_values: torch.Tensor, dataset: MarketDataset
) -> ActionArray:
    """Trade a dataset by the blended action values, position carried: int8 (T,).

    Args:
        blend: the hyper-agent.
        inputs: float32 (T, F + 2).
        agent_values: float32 (T, n, 3, 3), values of the sub-agents on the same rows and device.
        dataset: T rows.
    """
    weights = in_blocks(blend, inputs, agent_values.device)
    choices = blended(weights, agent_values).argmax(dim=-1).to("cpu", torch.int8).numpy()
    return rolled_out(choices, dataset.segment)
