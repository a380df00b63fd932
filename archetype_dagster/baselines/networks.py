"""The greedy half of a trained agent: a score for each action, without critics, sampling or optimisers."""

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

from archetype_dagster.baselines.strategy import rolled_out
from archetype_dagster.envs import LookbackWindows
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.network_files import load_network, save_network
from archetype_dagster.types import ActionArray, JsonDict

WEIGHTS_FILE: Final = "policy.safetensors"
# Bounds the memory: a chunk of windows takes about 25 MB at 30 bars of 45 features.
_CHUNK_ROWS: Final = 4096


class CascadedLstm(nn.Module):
    """Two LSTMs, one over the outputs of the other, read at a window's last bar.

    The state starts from zero in each window, so nothing is carried from one decision to the next.

    Args:
        num_features: market features F.
        hidden_size: units H of each LSTM.
    """

    def __init__(self, num_features: int, hidden_size: int) -> None:
        super().__init__()
        self.lower = nn.LSTM(num_features + 1, hidden_size, batch_first=True)
        self.upper = nn.LSTM(hidden_size, hidden_size, batch_first=True)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """float32 (B, L, F + 1) of `LookbackWindows` -> (B, H)."""
        outputs, _ = self.upper(self.lower(windows)[0])
        last = windows[..., -1].sum(dim=1).long() - 1
        read: torch.Tensor = outputs[torch.arange(len(windows), device=windows.device), last]
        return read


class PolicyNetwork(nn.Module):
    """Scores of the three actions from the market and the action held; the highest one is taken.

    Args:
        num_features: market features F.
        hidden_sizes: units of the ReLU layers.
        lookback_bars: bars L of the window that an LSTM reads; None for the current row alone.
        recurrent_size: units of that LSTM.
    """

    def __init__(
        self,
        num_features: int,
        hidden_sizes: Sequence[int],
        lookback_bars: int | None = None,
        recurrent_size: int | None = None,
    ) -> None:
        super().__init__()
        self.shape: JsonDict = {
            "num_features": num_features,
            "hidden_sizes": list(hidden_sizes),
            "lookback_bars": lookback_bars,
            "recurrent_size": recurrent_size,
        }
        self.lookback_bars = lookback_bars
        self.encoder = None if recurrent_size is None else CascadedLstm(num_features, recurrent_size)
        layers: list[nn.Module] = []
        for size_in, size_out in itertools.pairwise([(recurrent_size or num_features) + 3, *hidden_sizes]):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.scores = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], 3))

    def forward(self, market: torch.Tensor) -> torch.Tensor:
        """Scores by held action and action to take: float32 (B, F), or windows (B, L, F + 1), -> (B, 3, 3)."""
        seen = market if self.encoder is None else self.encoder(market)
        held = torch.eye(3, device=seen.device, dtype=seen.dtype).expand(len(seen), 3, 3)
        scores: torch.Tensor = self.scores(torch.cat((seen.unsqueeze(1).expand(-1, 3, -1), held), dim=-1))
        return scores


@dataclass(frozen=True)
class LearnedStrategy:
    """A trained baseline, on the device its network is on.

    Attributes:
        name: key of `BASELINES`.
        network: weights of the best validation.
        history: one row per validation: `steps`, `validation_return` (mean reward per bar of the greedy roll-out,
            percent of notional) and `loss`, the last training loss before it (null in the first row).
    """

    name: str
    network: PolicyNetwork
    history: pl.DataFrame

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """See `Strategy.actions`; equal scores go to the lowest action."""
        return greedy_actions(self.network, dataset)

    def save(self, directory: Path) -> None:
        """Write weights and history into an existing folder."""
        save_network(directory, WEIGHTS_FILE, self.network, {"name": self.name, **self.network.shape}, self.history)

    @classmethod
    def load(cls, name: str, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or of another baseline."""

        def build(facts: JsonDict) -> PolicyNetwork:
            found = facts.pop("name", None)
            if found != name:
                raise ArtifactError(f"{directory / WEIGHTS_FILE} holds the baseline {found!r}, expected {name!r}")
            return PolicyNetwork(**facts)

        return cls(name, *load_network(directory, WEIGHTS_FILE, build))


def greedy_actions(network: PolicyNetwork, dataset: MarketDataset) -> ActionArray:
    """The action of the highest score on every row, int8 (T,), the position carried inside segments."""
    device = next(network.parameters()).device
    windows = None if network.lookback_bars is None else LookbackWindows(dataset, network.lookback_bars)
    following = np.empty((len(dataset), 3), dtype=np.int8)
    for first in range(0, len(dataset), _CHUNK_ROWS):
        rows = np.arange(first, min(first + _CHUNK_ROWS, len(dataset)))
        market = dataset.states[rows] if windows is None else windows.at(rows)
        with torch.no_grad():
            scores = network(torch.as_tensor(market, device=device))
        following[rows] = scores.argmax(dim=-1).cpu().numpy()
    return rolled_out(following, dataset.segment)
