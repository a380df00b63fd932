"""The trained refiner as an artifact: it proposes overrides of the base actions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from archetype_dagster.refinement.network import RefinerNetwork
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

    def logits(self, states: StateArray | torch.Tensor, context: StateArray | torch.Tensor) -> NDArray[np.float32]:
        """Logits over [short (-1), nothing (0), long (+1)]; see `refinement_context` for the context.

        float32 (..., F) and (..., C) with the same leading axes -> float32 (..., 3). Rows run in even portions that
        fit a processor's cache, so memory beyond input and result is small whatever the caller asks for.
        """
        device = next(self.network.parameters()).device
        bars, seen = torch.as_tensor(states), torch.as_tensor(context)
        leading = bars.shape[:-1]
        portions = max(1, -(-leading.numel() // _ROWS_AT_ONCE))
        pairs = zip(bars.flatten(0, -2).tensor_split(portions), seen.flatten(0, -2).tensor_split(portions), strict=True)
        with torch.no_grad():
            logits = torch.cat([self.network(own.to(device), known.to(device))[0] for own, known in pairs])
        result: NDArray[np.float32] = logits.view(*leading, 3).cpu().numpy()
        return result

    def save(self, directory: Path) -> None:
        """Write the weights and the history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: RefinerNetwork(**facts)))
