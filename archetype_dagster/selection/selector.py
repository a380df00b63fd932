"""The trained selector as an artifact: it chooses the archetype of each horizon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

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

    def logits(self, states: StateArray | torch.Tensor) -> NDArray[np.float32]:
        """Code logits of horizon starts: float32 (B, F) -> float32 (B, K)."""
        device = next(self.network.parameters()).device
        with torch.no_grad():
            result: NDArray[np.float32] = self.network(torch.as_tensor(states, device=device))[0].cpu().numpy()
        return result

    def choose(self, states: StateArray | torch.Tensor) -> IndexArray:
        """The greedy code of each horizon start: float32 (B, F) -> int64 (B,); ties go to the lowest code."""
        codes: IndexArray = self.logits(states).argmax(axis=1)
        return codes

    def save(self, directory: Path) -> None:
        """Write the weights and the history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, self.network.shape, self.history)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        return cls(*load_network(directory, WEIGHTS_FILE, lambda facts: SelectorNetwork(**facts)))
