"""The selector's network: an actor-critic over the market state at a horizon's start."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn


class SelectorNetwork(nn.Module):
    """An MLP with a head of K code logits and a head for the state's value.

    Args:
        num_features: market features F.
        num_codes: archetypes K.
        hidden_sizes: units of the shared layers, at least one.

    Raises:
        ValueError: no hidden layer.
    """

    def __init__(self, num_features: int, num_codes: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.shape = {"num_features": num_features, "num_codes": num_codes, "hidden_sizes": list(hidden_sizes)}
        self.trunk = mlp(num_features, hidden_sizes)
        self.actor = nn.Linear(hidden_sizes[-1], num_codes)
        self.critic = nn.Linear(hidden_sizes[-1], 1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Code logits and the state's value in percent of notional: float32 (B, F) -> (B, K) and (B,)."""
        hidden = self.trunk(states)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def mlp(num_features: int, hidden_sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given sizes, each followed by ReLU; ValueError without one."""
    if not hidden_sizes:
        raise ValueError("hidden_sizes must name at least one layer, got hidden_sizes=()")
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise([num_features, *hidden_sizes]):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers)
