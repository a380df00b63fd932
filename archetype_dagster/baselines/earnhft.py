"""EarnHFT (Qin et al., AAAI 2024): agents with different taste in trends, a pool of the best, and a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from torch import nn

from archetype_dagster.baselines.chunks import cut_chunks, preference_weights, rank_labels
from archetype_dagster.baselines.learning_market import LearningMarket, TransitionBatches
from archetype_dagster.baselines.router import routed_actions, routed_blocks, train_router
from archetype_dagster.baselines.stages import StagedTraining
from archetype_dagster.baselines.strategy import mean_reward
from archetype_dagster.baselines.value_learning import VALIDATION_SCORE, AgentTraining, chunk_returns, greedy_actions
from archetype_dagster.baselines.value_networks import OnlineAndTarget, PositionNetwork
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import reward_table
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, Progress, StateArray

WEIGHTS_FILE: Final = "earnhft.safetensors"


class EarnHftNetwork(nn.Module):
    """All networks of the method and the table that joins them.

    Args:
        num_features: market features F.
        hidden_sizes: units of every network's layers.
        num_agents: agents A.
        num_trends: trend labels L.
        decision_bars: bars between two choices of the router.
    """

    pool: torch.Tensor

    def __init__(
        self, num_features: int, hidden_sizes: Sequence[int], num_agents: int, num_trends: int, decision_bars: int
    ) -> None:
        super().__init__()
        self.shape = {
            "num_features": num_features,
            "hidden_sizes": list(hidden_sizes),
            "num_agents": num_agents,
            "num_trends": num_trends,
            "decision_bars": decision_bars,
        }
        self.decision_bars = decision_bars
        self.agents = nn.ModuleList(PositionNetwork(num_features, hidden_sizes, 3) for _ in range(num_agents))
        self.router = PositionNetwork(num_features, hidden_sizes, num_trends)
        self.register_buffer("pool", torch.zeros(num_trends, 3, dtype=torch.int64))


@dataclass(frozen=True)
class EarnHft:
    """The fitted strategy.

    Attributes:
        network: agents, router, and `pool`, int64 (L, 3): the agent for each trend label and held action.
        history: one row per validation of each stage.
    """

    network: EarnHftNetwork
    history: pl.DataFrame

    @property
    def name(self) -> str:
        """Key of the strategy."""
        return "earnhft"

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """The action of every row, int8 (T,); row t's depends on the states of rows up to t alone."""
        device = self.network.pool.device
        return routed_actions(
            self.network.router,
            self.network.pool.cpu().numpy(),
            agent_decisions(self.network.agents, dataset.states, device),
            dataset,
            bars=self.network.decision_bars,
            device=device,
        )

    def save(self, directory: Path) -> None:
        """Write weights and history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: EarnHftNetwork(**facts)))


def fit_earnhft(
    train: MarketDataset,
    validation: MarketDataset,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> EarnHft:
    """Train agents, pick the pool, train the router.

    Args:
        train: training split; agents and router learn on it.
        validation: validation split; weights, and the agents of the pool, are chosen on it.
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
    method, stages = settings.earnhft, StagedTraining(resume)
    learning = LearningMarket(train, train.states, reward_table(train), cut_chunks(train, method.chunk_bars))
    chunks = cut_chunks(validation, method.chunk_bars, at_least=method.num_trends)
    watched = LearningMarket(validation, validation.states, reward_table(validation), chunks)
    preferences = method.trend_preferences
    with seeded_initialisation(seed, "earnhft"):
        network = EarnHftNetwork(
            train.num_features, settings.hidden_sizes, len(preferences), method.num_trends, method.decision_bars
        )
    network.to(device)
    batches = TransitionBatches(learning, gamma=settings.gamma, device=device)
    training = AgentTraining(learning, watched, batches, settings, method, stages, seed, progress)
    for number, preference in enumerate(preferences):
        training.run(
            f"earnhft_agent_{number}",
            network.agents[number],
            share=method.agents_share / len(preferences),
            train_weights=preference_weights(learning.chunks.returns, preference),
            validation_weights=preference_weights(chunks.returns, preference),
        )
    earned = np.stack([chunk_returns(agent, watched, chunks.rows, device) for agent in network.agents])
    pool = pick_pool(earned, rank_labels(chunks.slopes, method.num_trends), method.num_trends)
    network.pool.copy_(torch.from_numpy(pool))

    decisions = [agent_decisions(network.agents, split.states, device) for split in (train, validation)]
    blocks = routed_blocks(learning, decisions[0], pool, bars=method.decision_bars, gamma=settings.gamma)
    pair = OnlineAndTarget(network.router).to(device)

    def validate() -> dict[str, float]:
        taken = routed_actions(pair, pool, decisions[1], validation, bars=method.decision_bars, device=device)
        return {VALIDATION_SCORE: mean_reward(taken, validation, watched.table)}

    stages.run(
        "earnhft_router",
        pair,
        lambda point: train_router(
            pair, blocks, train.states, validate, settings, seed=seed, device=device, resume=point, progress=progress
        ),
    )
    return EarnHft(network.cpu(), stages.history)


def agent_decisions(agents: nn.ModuleList, states: StateArray, device: torch.device) -> ActionArray:
    """Greedy decision of each of A agents on each row for each held action, int8 (A, T, 3)."""
    return np.stack([greedy_actions(agent, states, device) for agent in agents])


def pick_pool(earned: FloatArray, labels: IndexArray, num_trends: int) -> IndexArray:
    """The agent with the highest mean return per trend label and action it starts from; ties to the earlier agent.

    Args:
        earned: float64 (A, C, 3), returns of each agent on each chunk entered with each action.
        labels: int64 (C,), trend label of each chunk; every label occurs.
        num_trends: labels L.

    Returns:
        int64 (L, 3), numbers of agents.
    """
    means = np.stack([earned[:, labels == label].mean(axis=1) for label in range(num_trends)])
    return np.asarray(means.argmax(axis=1), dtype=np.int64)
