"""A backbone as the features extractor of Stable-Baselines3's policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.registry import build_backbone


class BackboneFeaturesExtractor(BaseFeaturesExtractor):
    """Hands observations, which are windows of bars, to a backbone.

    Everything trainable is made here, before the policy makes its optimiser, so every weight is in it.

    Args:
        observation_space: Box (L, F), or flat and time-major (L F,), oldest row first.
        backbone_alias: alias of the backbone.
        sequence_length: rows L.
        input_features: numbers F of a row; None for what the space implies.
        features_dim: features that come out.
        backbone_kwargs: the backbone's own arguments.

    Raises:
        SettingsError: a space of another shape, an unknown alias, or the backbone's own refusals.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        backbone_alias: str = "TransformerBackbone",
        *,
        sequence_length: int = 30,
        input_features: int | None = None,
        features_dim: int = 128,
        backbone_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(observation_space, features_dim)
        self.backbone = build_backbone(
            backbone_alias,
            input_features=row_width(observation_space, sequence_length, input_features),
            sequence_length=sequence_length,
            output_dim=features_dim,
            backbone_kwargs=backbone_kwargs,
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32 (B, L, F) or (B, L F) -> (B, features_dim)."""
        features: torch.Tensor = self.backbone(observations)
        return features

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Leave the backbone as it was made.

        PPO draws the weights of its features extractor anew through this method (`ortho_init`), which would undo a
        pretrained backbone and ignore each backbone's own initialisation.
        """
        return self


def row_width(space: spaces.Space[Any], sequence_length: int, input_features: int | None = None) -> int:
    """Numbers F of a row of a Box of windows, (L, F) or flat (L F,).

    Args:
        space: observations.
        sequence_length: rows L.
        input_features: F where it is known; None for what the space implies.

    Raises:
        SettingsError: not a Box, or its shape is not that of L rows of F numbers.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 2):
        raise SettingsError(f"a backbone reads a Box of shape (L, F) or (L F,), got {space}")
    if sequence_length < 1:
        raise SettingsError(f"sequence_length must be positive, got sequence_length={sequence_length}")
    size = space.shape[0] * (space.shape[1] if len(space.shape) == 2 else 1)
    width = size // sequence_length if input_features is None else input_features
    if size != sequence_length * width or (len(space.shape) == 2 and space.shape != (sequence_length, width)):
        raise SettingsError(
            f"observations must be {sequence_length} rows of {'equal width' if input_features is None else width}, "
            f"got the shape {space.shape}"
        )
    return width
