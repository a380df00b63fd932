"""Networks that value each choice for every action held, in one pass: the state is encoded once."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from archetype_dagster.refinement.network import AdaptiveLayerNorm
from archetype_dagster.types import StateArray

_CONDITION_SIZE = 16
_BLOCK_ROWS = 1024
_FIRST_VALUES = 0.01


class PositionNetwork(nn.Module):
    """An MLP over the market state and an embedding of the held action (EarnHFT's agents and router).

    Args:
        num_features: market features F.
        hidden_sizes: units of the hidden layers, at least one.
        num_choices: choices n to be valued.
    """

    def __init__(self, num_features: int, hidden_sizes: Sequence[int], num_choices: int) -> None:
        super().__init__()
        self.state_input = nn.Linear(num_features, hidden_sizes[0])
        self.held = nn.Parameter(torch.randn(3, hidden_sizes[0]) / hidden_sizes[0] ** 0.5)
        layers: list[nn.Module] = [nn.ReLU()]
        for size_in, size_out in itertools.pairwise(hidden_sizes):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], num_choices))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Values of each choice for each held action: float32 (B, F) -> (B, 3, n)."""
        values: torch.Tensor = self.layers(self.state_input(states).unsqueeze(1) + self.held)
        return values


class ContextTrunk(nn.Module):
    """Layers over the market state whose norms are modulated by held action and context (MacroHFT's adapter).

    Args:
        num_features: market features F.
        context_size: context features C.
        hidden_sizes: units of the layers, at least one.
    """

    def __init__(self, num_features: int, context_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.num_features = num_features
        self.state_input = nn.Linear(num_features, hidden_sizes[0])
        self.context_input = nn.Linear(context_size, _CONDITION_SIZE)
        self.held = nn.Parameter(torch.randn(3, _CONDITION_SIZE))
        self.norms = nn.ModuleList(AdaptiveLayerNorm(size, _CONDITION_SIZE) for size in hidden_sizes)
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in itertools.pairwise(hidden_sizes))

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        """The state before it is modulated: float32 (B, F + C) -> (B, hidden_sizes[0])."""
        encoded: torch.Tensor = self.state_input(inputs[:, : self.num_features])
        return encoded

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """State and context, side by side, as seen with each action held: (B, F + C) -> (B, 3, hidden_sizes[-1])."""
        context = self.context_input(inputs[:, self.num_features :])
        condition = torch.nn.functional.silu(context.unsqueeze(1) + self.held)
        hidden: torch.Tensor = self.norms[0](self.encode(inputs).unsqueeze(1), condition)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            hidden = norm(torch.nn.functional.silu(layer(hidden)), condition)
        return hidden


class DuellingNetwork(nn.Module):
    """Action values as a state's value plus centred advantages, on a modulated trunk (MacroHFT's sub-agents)."""

    def __init__(self, num_features: int, context_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.trunk = ContextTrunk(num_features, context_size, hidden_sizes)
        self.value = nn.Linear(hidden_sizes[-1], 1)
        self.advantage = nn.Linear(hidden_sizes[-1], 3)
        # Normed activations are of order one, a bar's values are not: large ones would first have to be unlearned.
        nn.init.normal_(self.value.weight, std=_FIRST_VALUES)
        nn.init.normal_(self.advantage.weight, std=_FIRST_VALUES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Values of each action for each held one: float32 (B, F + C) -> (B, 3, 3)."""
        hidden = self.trunk(inputs)
        advantage = self.advantage(hidden)
        values: torch.Tensor = self.value(hidden) + advantage - advantage.mean(dim=-1, keepdim=True)
        return values


class BlendNetwork(nn.Module):
    """Softmax weights over n sub-agents on a modulated trunk, equal at first (MacroHFT's hyper-agent)."""

    def __init__(self, num_features: int, context_size: int, hidden_sizes: Sequence[int], num_agents: int) -> None:
        super().__init__()
        self.trunk = ContextTrunk(num_features, context_size, hidden_sizes)
        self.head = nn.Linear(hidden_sizes[-1], num_agents)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Weights for each held action: float32 (B, F + C) -> (B, 3, n), each row sums to 1."""
        return torch.softmax(self.head(self.trunk(inputs)), dim=-1)


class OnlineAndTarget(nn.Module):
    """A network that learns and the slow copy of it that values what comes after."""

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.online = online
        self.target = copy.deepcopy(online).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the learning network says."""
        result: torch.Tensor = self.online(inputs)
        return result

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Move the target's weights the share `rate` of the way to the online ones."""
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, rate)


@torch.no_grad()
def in_blocks(
    function: Callable[[torch.Tensor], torch.Tensor], inputs: StateArray, device: torch.device
) -> torch.Tensor:
    """Apply `function` to float32 (T, F) in blocks of rows on the device, and join what it gives."""
    blocks = (inputs[first : first + _BLOCK_ROWS] for first in range(0, len(inputs), _BLOCK_ROWS))
    return torch.cat([function(torch.from_numpy(block).to(device)) for block in blocks])
