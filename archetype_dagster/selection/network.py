"""The selector's network: an actor-critic over the market state at a horizon's start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from archetype_dagster.selection.market_input import MarketInput
from archetype_dagster.types import JsonDict


class SelectorTrunk(nn.Module):
    """What every selector's heads stand on: the market's input and an MLP.

    Args:
        num_features: market features F.
        hidden_sizes: units of the MLP's layers, at least one; a backbone gives as many features as the first has.
        backbone: alias of a backbone; None where the state alone is read.
        lookback_bars: bars L of a window, the current one included; 1 without a backbone.
        backbone_kwargs: the backbone's own arguments.

    Raises:
        ValueError: no hidden layer.
        SettingsError: see `MarketInput`.
    """

    def __init__(
        self,
        num_features: int,
        hidden_sizes: Sequence[int],
        *,
        backbone: str | None = None,
        lookback_bars: int = 1,
        backbone_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not hidden_sizes:
            raise ValueError("hidden_sizes must name at least one layer, got hidden_sizes=()")
        self.market = MarketInput(
            num_features,
            backbone=backbone,
            lookback_bars=lookback_bars,
            backbone_kwargs=backbone_kwargs,
            output_dim=hidden_sizes[0],
        )
        self.trunk = mlp(self.market.size, hidden_sizes)
        self.shape: JsonDict = {"num_features": num_features, "hidden_sizes": list(hidden_sizes), **self.market.facts}

    @property
    def lookback_bars(self) -> int:
        """Bars L that are read; 1: the state alone."""
        return self.market.lookback_bars

    def hidden(self, market: torch.Tensor) -> torch.Tensor:
        """float32 (B, F) where L is 1, else windows (B, L, F), oldest first, -> (B, hidden_sizes[-1])."""
        hidden: torch.Tensor = self.trunk(self.market(market))
        return hidden


class SelectorNetwork(SelectorTrunk):
    """A trunk with a head of K code logits and a head for the state's value.

    Args:
        num_features: market features F.
        num_codes: archetypes K.
        hidden_sizes: units of the shared layers, at least one.
        backbone: alias, lookback_bars and backbone_kwargs as in `SelectorTrunk`.

    Raises:
        ValueError: no hidden layer.
        SettingsError: see `MarketInput`.
    """

    def __init__(self, num_features: int, num_codes: int, hidden_sizes: Sequence[int], **backbone: Any) -> None:
        super().__init__(num_features, hidden_sizes, **backbone)
        self.shape |= {"num_codes": num_codes}
        self.actor = nn.Linear(hidden_sizes[-1], num_codes)
        self.critic = nn.Linear(hidden_sizes[-1], 1)

    def forward(self, market: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Code logits and the state's value in percent of notional.

        float32 (B, F) where `lookback_bars` is 1, else (B, L, F), oldest first, the last row the current bar;
        rows before the segment's first are zero -> (B, K) and (B,).
        """
        hidden = self.hidden(market)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def mlp(num_features: int, hidden_sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given sizes, each followed by ReLU."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise([num_features, *hidden_sizes]):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers)
