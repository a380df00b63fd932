"""A split as value learning needs it: inputs, all transitions, labelled chunks, and batches of rows by weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from archetype_dagster.baselines.chunks import Chunks
from archetype_dagster.baselines.transitions import optimal_action_values
from archetype_dagster.envs import RewardTable
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.types import FloatArray, IndexArray, StateArray


@dataclass(frozen=True)
class LearningMarket:
    """One split as the agents see it.

    Attributes:
        dataset: its T rows.
        inputs: float32 (T, F'), what a network is given of each row.
        table: rewards of all transitions, percent of notional.
        chunks: the split in chunks that can be labelled.
    """

    dataset: MarketDataset
    inputs: StateArray
    table: RewardTable
    chunks: Chunks


class TransitionBatches:
    """Rows of the training split on the device, with rewards and the teacher's values."""

    def __init__(self, market: LearningMarket, *, gamma: float, device: torch.device) -> None:
        teacher = optimal_action_values(market.table.percent, market.table.usable, gamma=gamma)
        self.device = device
        self.inputs = torch.from_numpy(market.inputs).to(device)
        self.rewards = torch.from_numpy(market.table.percent).to(device, torch.float32)
        self.teacher = torch.from_numpy(teacher).to(device, torch.float32)


class WeightedRows:
    """Draws rows so that an epoch's draws follow the rows' weights evenly.

    The k-th of n draws takes a random point of the k-th n-th of the cumulated weights: with equal weights
    every row comes once an epoch.

    Args:
        rows: int64 (n,).
        weights: float64 (n,), not negative, some positive.
    """

    def __init__(self, rows: IndexArray, weights: FloatArray) -> None:
        self._rows = rows
        cumulated = np.cumsum(weights)
        self._upper_ends = cumulated / cumulated[-1]

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, indices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Rows of the draws `indices` of an epoch, both int64 (B,)."""
        jitter = torch.rand(len(indices), generator=generator, dtype=torch.float64).numpy()
        points = np.minimum((indices.numpy() + jitter) / len(self), np.nextafter(1.0, 0.0))
        return torch.from_numpy(self._rows[np.searchsorted(self._upper_ends, points, side="right")])
