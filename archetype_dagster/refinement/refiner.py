"""The trained refiner as an artifact: it proposes overrides of the base actions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.types import StateArray

WEIGHTS_FILE: Final = "refiner.safetensors"
_ROWS_AT_ONCE: Final = 2048


@dataclass(frozen=True)
class Refiner:
    """The frozen policy of Phase III.

    Attributes:
        network: the actor-critic, best weights on validation.
        history: one row per validation of its training, see `rl.training_loop.maximise`.
    """

    network: RefinerNetwork
    history: pl.DataFrame

    def logits(self, market: StateArray | torch.Tensor, context: StateArray | torch.Tensor) -> NDArray[np.float32]:
        """Logits over [short (-1), nothing (0), long (+1)]; see `refinement_context` for the context.

        float32 (..., F), or windows (..., L, F) for a backbone, and (..., C) with the same leading axes -> float32
        (..., 3). A caller with many rows of one dataset encodes them once by `encoded`.
        """
        device = next(self.network.parameters()).device
        with torch.no_grad():
            return self.judge(self.network.market(torch.as_tensor(market).to(device)), context)

    def encoded(self, dataset: MarketDataset) -> StateArray:
        """What the network's first half makes of each row, whatever is held: float32 (T, D); the states without one.

        Windows are cut portion by portion, so their memory does not grow with T.
        """
        if self.network.lookback_bars == 1:
            return dataset.states
        device = next(self.network.parameters()).device
        windows = MarketWindows(dataset, self.network.lookback_bars, device)
        result: StateArray = (
            windows.through(self.network.market, torch.arange(len(dataset), device=device)).cpu().numpy()
        )
        return result

    def judge(self, encoded: StateArray | torch.Tensor, context: StateArray | torch.Tensor) -> NDArray[np.float32]:
        """Logits from what `encoded` gave, float32 (..., D), and context (..., C): float32 (..., 3).

        Rows run in even portions that fit a processor's cache, so memory beyond input and result is small whatever
        the caller asks for.
        """
        device = next(self.network.parameters()).device
        bars, seen = torch.as_tensor(encoded), torch.as_tensor(context)
        leading = bars.shape[:-1]
        portions = max(1, -(-leading.numel() // _ROWS_AT_ONCE))
        pairs = zip(bars.flatten(0, -2).tensor_split(portions), seen.flatten(0, -2).tensor_split(portions), strict=True)
        with torch.no_grad():
            logits = torch.cat([self.network.judge(own.to(device), known.to(device))[0] for own, known in pairs])
        result: NDArray[np.float32] = logits.view(*leading, 3).cpu().numpy()
        return result

    def save(self, directory: Path) -> None:
        """Write the weights and the history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: RefinerNetwork(**facts)))
