"""The network of the CleanRL-style bridge: a backbone below an actor and a critic."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.features import row_width
from archetype_dagster.policies.registry import build_backbone_from_alias
from archetype_dagster.rl.ppo import entropy
from archetype_dagster.settings.policies import CleanRlSettings

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class ActorCritic(nn.Module):
    """A backbone with one MLP for the action's distribution and one for the value.

    Discrete actions have logits; those of a Box have means, and deviations that do not depend on the observation.

    Args:
        observation_space: Box (L, F) or flat (L F,).
        action_space: Discrete or one-dimensional Box.
        settings: the trunk and the MLPs.

    Raises:
        SettingsError: a space of another kind or shape, or what the backbone refuses.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], settings: CleanRlSettings
    ) -> None:
        super().__init__()
        self.action_space = action_space
        self.trunk = build_backbone_from_alias(
            settings.backbone_alias,
            input_features=row_width(observation_space, settings.sequence_length),
            sequence_length=settings.sequence_length,
            output_dim=settings.features_dim,
            backbone_kwargs=settings.backbone_kwargs,
        )
        if isinstance(action_space, spaces.Discrete):
            self.outputs, self.log_deviation = int(action_space.n), None
        elif isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
            self.outputs = action_space.shape[0]
            self.log_deviation = nn.Parameter(torch.zeros(self.outputs))
        else:
            raise SettingsError(f"actions must be Discrete or a Box of shape (A,), got {action_space}")
        sizes = [settings.features_dim, *settings.hidden_sizes]
        self.actor = _head(sizes, self.outputs, gain=0.01)
        self.critic = _head(sizes, 1, gain=1.0)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits or means, and values: float32 (B, L, F) or (B, L F) -> (B, A) and (B,)."""
        features = self.trunk(observations)
        return self.actor(features), self.critic(features).squeeze(-1)

    def scores(self, observations: torch.Tensor) -> torch.Tensor:
        """Logits or means alone, (B, A)."""
        scores: torch.Tensor = self.actor(self.trunk(observations))
        return scores

    def judge(self, scores: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of the actions, int64 (B,) or float32 (B, A), and the distribution's entropy: (B,) each."""
        if self.log_deviation is None:
            log_probs = scores.log_softmax(-1)
            return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy(log_probs)
        log_deviation = self.log_deviation.expand_as(scores)
        squares = ((actions - scores) / log_deviation.exp()).square()
        log_probs = -0.5 * squares - log_deviation - _LOG_ROOT_TWO_PI
        return log_probs.sum(-1), (log_deviation + 0.5 + _LOG_ROOT_TWO_PI).sum(-1)

    def sample(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Drawn actions, int64 (B,) or float32 (B, A), on the CPU so that a seed gives the same ones on any device."""
        if self.log_deviation is None:
            return torch.multinomial(scores.softmax(-1).cpu(), 1, generator=generator).squeeze(-1)
        noise = torch.randn(scores.shape, generator=generator)
        return scores.cpu() + self.log_deviation.detach().exp().cpu() * noise

    def played(self, actions: torch.Tensor) -> np.ndarray:
        """Actions as the environment takes them: counted from the space's start, or clipped to its bounds."""
        if isinstance(self.action_space, spaces.Box):
            clipped: np.ndarray = np.clip(actions.cpu().numpy(), self.action_space.low, self.action_space.high)
            return clipped.astype(self.action_space.dtype)
        counted: np.ndarray = actions.cpu().numpy() + int(getattr(self.action_space, "start", 0))
        return counted


def _head(sizes: list[int], outputs: int, gain: float) -> nn.Sequential:
    """Tanh layers and a linear one, with the orthogonal weights that PPO implementations start from."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise(sizes):
        layers += [_orthogonal(nn.Linear(size_in, size_out), 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, _orthogonal(nn.Linear(sizes[-1], outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
