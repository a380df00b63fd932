"""The selector over a continuous embedding as an artifact: it chooses the vector that a horizon is decoded with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.types import IndexArray, StateArray

WEIGHTS_FILE: Final = "continuous_selector.safetensors"


@dataclass(frozen=True)
class ContinuousSelector:
    """The frozen policy of Phase II where Phase I learnt no codes.

    Attributes:
        network: the Gaussian actor-critic, best weights on validation.
        history: one row per validation of its training, see `rl.training_loop.maximise`.
    """

    network: GaussianSelectorNetwork
    history: pl.DataFrame

    def choose(self, market: StateArray | torch.Tensor) -> StateArray:
        """The policy's mean embedding at each horizon start: float32 (B, F), or windows (B, L, F), -> (B, D)."""
        device = next(self.network.parameters()).device
        with torch.no_grad():
            means, _ = self.network(torch.as_tensor(market, device=device))
            embeddings: StateArray = self.network.embeddings(means).cpu().numpy()
        return embeddings

    def choose_at(self, dataset: MarketDataset, rows: IndexArray) -> StateArray:
        """The mean embedding of horizons that start on some rows of a dataset: int64 (B,) -> float32 (B, D)."""
        windows = MarketWindows(dataset, self.network.lookback_bars)
        return np.concatenate([self.choose(portion) for portion in windows.portions(torch.as_tensor(rows))])

    def save(self, directory: Path) -> None:
        """Write the weights and the history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: GaussianSelectorNetwork(**facts)))
