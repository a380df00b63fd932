"""The refiner's network: a residual trunk over market states, conditioned on the context by adaptive layer norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from archetype_dagster.selection.market_input import MarketInput
from archetype_dagster.types import JsonDict

_NUM_BLOCKS = 2


class AdaptiveLayerNorm(nn.Module):
    """Layer norm whose scale and shift are computed from a condition (Peebles and Xie 2023).

    The modulation starts at zero, so at first this is plain layer norm whatever the condition is.
    """

    def __init__(self, size: int, condition_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size, elementwise_affine=False)
        self.modulation = nn.Linear(condition_size, 2 * size)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, values: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Float (..., size) and (..., condition_size) -> (..., size)."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        modulated: torch.Tensor = self.norm(values) * (1 + scale) + shift
        return modulated


class _ResidualBlock(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = AdaptiveLayerNorm(size, size)
        self.layers = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))

    def forward(self, values: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = values + self.layers(self.norm(values, condition))
        return result


class RefinerNetwork(nn.Module):
    """Actor-critic over one bar's market state, or the window that ends on it, and context.

    It starts as the policy that ignores both and does nothing almost always (see `start_patient`).

    Args:
        num_features: market features F.
        context_dim: context size C, see `refinement_context`.
        hidden_size: units of the trunk; a backbone gives as many features.
        backbone: alias of a backbone; None where the state alone is read.
        lookback_bars: bars L of a window, the current one included; 1 without a backbone.
        backbone_kwargs: the backbone's own arguments.

    Attributes:
        market: the first half, which depends on the market alone: the same whatever position is held.

    Raises:
        SettingsError: see `MarketInput`.
    """

    def __init__(
        self,
        num_features: int,
        context_dim: int,
        hidden_size: int,
        *,
        backbone: str | None = None,
        lookback_bars: int = 1,
        backbone_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.market = MarketInput(
            num_features,
            backbone=backbone,
            lookback_bars=lookback_bars,
            backbone_kwargs=backbone_kwargs,
            output_dim=hidden_size,
        )
        self.shape: JsonDict = {
            "num_features": num_features,
            "context_dim": context_dim,
            "hidden_size": hidden_size,
            **self.market.facts,
        }
        self.state_input = nn.Linear(self.market.size, hidden_size)
        self.context_input = nn.Sequential(nn.Linear(context_dim, hidden_size), nn.SiLU())
        self.blocks = nn.ModuleList(_ResidualBlock(hidden_size) for _ in range(_NUM_BLOCKS))
        self.norm = AdaptiveLayerNorm(hidden_size, hidden_size)
        self.actor = nn.Linear(hidden_size, 3)
        self.critic = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.actor.weight)
        nn.init.zeros_(self.actor.bias)

    def start_patient(self, horizon_bars: int) -> None:
        """Set the first policy so that an override is expected about once per horizon of h bars.

        A uniform start would act within the first bars almost surely, and later bars would get no gradient.
        """
        with torch.no_grad():
            self.actor.bias.copy_(torch.tensor([0.0, math.log(2 * horizon_bars), 0.0]))

    @property
    def lookback_bars(self) -> int:
        """Bars L that are read; 1: the state alone."""
        return self.market.lookback_bars

    def forward(self, market: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits over [short (-1), nothing (0), long (+1)] and the state's value in percent of notional.

        Args:
            market: float32 (..., F), scaled features, where `lookback_bars` is 1; else (..., L, F), oldest first, the
                last row the current bar; rows before the segment's first are zero.
            context: float32 (..., C), with the same leading axes.

        Returns:
            float32 (..., 3) and (...).
        """
        return self.judge(self.market(market), context)

    def judge(self, encoded: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The second half of `forward`: what `market` gave, float32 (..., D), and context (..., C)."""
        condition = self.context_input(context)
        hidden = self.state_input(encoded)
        for block in self.blocks:
            hidden = block(hidden, condition)
        hidden = self.norm(hidden, condition)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)
