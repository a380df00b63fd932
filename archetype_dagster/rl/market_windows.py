"""What a network of Phase II or III reads of each row: its state, or the window of states that ends on it.

Its windows are oldest first with zeros before a segment's first row; those of `envs.LookbackWindows`, which the
baselines learn from, begin with the bars and mark them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch

from archetype_dagster.market.dataset import MarketDataset

# Bounds the memory of a pass without gradients: a window's bars, not its number, are what a backbone keeps.
_BARS_AT_ONCE: Final = 32_768


class MarketWindows:
    """Gathers states or windows on a device, where only the rows themselves are kept.

    Args:
        dataset: the rows; each of its segments is read as one whose first row has nothing before it.
        lookback_bars: L, the row itself included.
        device: where to gather.

    Raises:
        ValueError: lookback_bars below 1.
    """

    def __init__(self, dataset: MarketDataset, lookback_bars: int, device: torch.device | None = None) -> None:
        if lookback_bars < 1:
            raise ValueError(f"lookback_bars must be positive, got lookback_bars={lookback_bars}")
        self.lookback_bars = lookback_bars
        self._states = torch.from_numpy(dataset.states).to(device)
        self._segment = torch.tensor(dataset.segment, device=device)
        self._back = torch.arange(1 - lookback_bars, 1, device=device)

    def at(self, rows: torch.Tensor) -> torch.Tensor:
        """What is read on `rows`, int64 (...), on the device: float32 (..., F) where L is 1, else (..., L, F).

        A window is oldest first and ends with the row itself; where its segment began less than L rows ago, the
        rows before that are zero.
        """
        if self.lookback_bars == 1:
            return self._states[rows]
        wanted = rows.unsqueeze(-1) + self._back
        begins = torch.searchsorted(self._segment, self._segment[rows])
        absent = wanted < begins.unsqueeze(-1)
        return self._states[wanted.clamp(min=0)].masked_fill_(absent.unsqueeze(-1), 0.0)

    def portions(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """`at` of the rows (n,) in portions that bound the memory; single states come all at once."""
        size = len(rows) if self.lookback_bars == 1 else max(1, _BARS_AT_ONCE // self.lookback_bars)
        return (self.at(portion) for portion in torch.split(rows, max(1, size)))

    def through(self, network: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """What a network makes of each row's input, portion by portion, without gradients: (n, ...)."""
        with torch.no_grad():
            return torch.cat([network(portion) for portion in self.portions(rows)])
