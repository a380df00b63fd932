"""The refiner's network: a residual trunk over market states, conditioned on the context by adaptive layer norm."""

from __future__ import annotations

import math

import torch
from torch import nn

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
    """Actor-critic over one bar's market state and context.

    It starts as the policy that ignores both and does nothing almost always (see `start_patient`).

    Args:
        num_features: market features F.
        context_dim: context size C, see `refinement_context`.
        hidden_size: units of the trunk.
    """

    def __init__(self, num_features: int, context_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.shape = {"num_features": num_features, "context_dim": context_dim, "hidden_size": hidden_size}
        self.state_input = nn.Linear(num_features, hidden_size)
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

    def forward(self, states: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits over [short (-1), nothing (0), long (+1)] and the state's value in percent of notional.

        Args:
            states: float32 (..., F), scaled features.
            context: float32 (..., C), with the same leading axes.

        Returns:
            float32 (..., 3) and (...).
        """
        condition = self.context_input(context)
        hidden = self.state_input(states)
        for block in self.blocks:
            hidden = block(hidden, condition)
        hidden = self.norm(hidden, condition)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)
