"""The network of a policy over embeddings: a diagonal Gaussian around a mean that the market state gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from archetype_dagster.selection.network import SelectorTrunk


class GaussianSelectorNetwork(SelectorTrunk):
    """A trunk with a head for the mean of u and a head for the state's value; z = centre + spread * u.

    u is the embedding z in units of the demonstrations' own centre and spread, so that the untrained policy
    already draws embeddings of the size that the decoder knows. A dimension in which they do not differ has
    spread 0 and keeps their value.

    Args:
        num_features: market features F.
        code_dim: dimension D of an embedding.
        hidden_sizes: units of the shared layers, at least one.
        backbone: alias, lookback_bars and backbone_kwargs as in `SelectorTrunk`.

    Attributes:
        log_std: Parameter (D,), logarithm of the policy's standard deviation of u, the same in every state.
        centre: float32 (D,), mean of the demonstrations' embeddings.
        spread: float32 (D,), their standard deviation.

    Raises:
        ValueError: no hidden layer.
        SettingsError: see `MarketInput`.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, num_features: int, code_dim: int, hidden_sizes: Sequence[int], **backbone: Any) -> None:
        super().__init__(num_features, hidden_sizes, **backbone)
        self.shape |= {"code_dim": code_dim}
        self.actor = nn.Linear(hidden_sizes[-1], code_dim)
        self.critic = nn.Linear(hidden_sizes[-1], 1)
        self.log_std = nn.Parameter(torch.zeros(code_dim))
        self.register_buffer("centre", torch.zeros(code_dim))
        self.register_buffer("spread", torch.ones(code_dim))

    def forward(self, market: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of u and the state's value in percent of notional.

        float32 (B, F) where `lookback_bars` is 1, else (B, L, F), as for `SelectorNetwork` -> (B, D) and (B,).
        """
        hidden = self.hidden(market)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def measure(self, embeddings: Tensor) -> None:
        """Take centre and spread from the demonstrations' embeddings, float32 (n, D)."""
        self.centre.copy_(embeddings.mean(dim=0))
        self.spread.copy_(embeddings.std(dim=0, correction=0))

    def units(self, embeddings: Tensor) -> Tensor:
        """u of z, both (..., D)."""
        return (embeddings - self.centre) / self.spread.where(self.spread > 0, 1.0)

    def embeddings(self, units: Tensor) -> Tensor:
        """z of u, both (..., D)."""
        return self.centre + self.spread * units

    @torch.no_grad()
    def sample(self, means: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """Draws of u around means (B, D): float32 (B, draws, D)."""
        # Drawn on the CPU so that a seed gives the same choices on every device.
        noise = torch.randn(len(means), draws, means.shape[1], generator=generator).to(means.device)
        return means.unsqueeze(1) + self.log_std.exp() * noise

    def log_density(self, means: Tensor, units: Tensor) -> Tensor:
        """log pi(u) in nats, summed over dimensions, for means (..., D) and u (..., D): (...)."""
        deviations = (units - means) * (-self.log_std).exp()
        return -(0.5 * deviations.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Entropy of the policy's u in nats, scalar: the same in every state."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
