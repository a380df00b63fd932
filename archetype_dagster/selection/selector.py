"""The trained selector as an artifact: it chooses the archetype of each horizon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.types import IndexArray, StateArray

WEIGHTS_FILE: Final = "selector.safetensors"


@dataclass(frozen=True)
class Selector:
    """The frozen policy of Phase II.

    Attributes:
        network: the actor-critic, best weights on validation.
        history: one row per validation of its training, see `rl.training_loop.maximise`.
    """

    network: SelectorNetwork
    history: pl.DataFrame

    @property
    def num_codes(self) -> int:
        """Number of archetypes K."""
        return self.network.actor.out_features

    def logits(self, market: StateArray | torch.Tensor) -> NDArray[np.float32]:
        """Code logits of horizon starts: float32 (B, F), or windows (B, L, F) for a backbone, -> float32 (B, K)."""
        device = next(self.network.parameters()).device
        with torch.no_grad():
            result: NDArray[np.float32] = self.network(torch.as_tensor(market, device=device))[0].cpu().numpy()
        return result

    def logits_at(self, dataset: MarketDataset, rows: IndexArray) -> NDArray[np.float32]:
        """Code logits of horizons that start on some rows of a dataset: int64 (B,) -> float32 (B, K).

        Windows are cut portion by portion, so their memory does not grow with B.
        """
        windows = MarketWindows(dataset, self.network.lookback_bars)
        return np.concatenate([self.logits(portion) for portion in windows.portions(torch.as_tensor(rows))])

    def choose(self, market: StateArray | torch.Tensor) -> IndexArray:
        """The greedy code of each horizon start, of what `logits` takes: int64 (B,); ties go to the lowest code."""
        codes: IndexArray = self.logits(market).argmax(axis=1)
        return codes

    def choose_at(self, dataset: MarketDataset, rows: IndexArray) -> IndexArray:
        """The greedy code of horizons that start on some rows of a dataset: int64 (B,) -> int64 (B,)."""
        codes: IndexArray = self.logits_at(dataset, rows).argmax(axis=1)
        return codes

    def save(self, directory: Path) -> None:
        """Write the weights and the history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: SelectorNetwork(**facts)))
