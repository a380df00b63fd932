"""What every backbone is: a network from a window of bars to a vector of features."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from archetype_dagster.errors import SettingsError


class Backbone(nn.Module, ABC):
    """Reads L rows of F numbers, oldest first; the last row is the current bar.

    A subclass implements `encode` and takes the same three arguments, then its own by keyword. Nothing is carried
    from one call to the next, so nothing crosses an episode's end.

    Args:
        input_features: numbers F of a row.
        sequence_length: rows L of a window.
        output_dim: features that come out.

    Raises:
        SettingsError: a size below 1.
    """

    def __init__(self, input_features: int, sequence_length: int, output_dim: int) -> None:
        super().__init__()
        require_positive(input_features=input_features, sequence_length=sequence_length, output_dim=output_dim)
        self.input_features = input_features
        self.sequence_length = sequence_length
        self.output_dim = output_dim

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32 (B, L, F), or flat and time-major (B, L F), -> (B, output_dim).

        Raises:
            ValueError: another shape.
        """
        return self.encode(self.windows(observations))

    @abstractmethod
    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """float32 (B, L, F) -> (B, output_dim)."""

    def windows(self, observations: torch.Tensor) -> torch.Tensor:
        """Either form of observations as (B, L, F); ValueError for another shape."""
        length, features = self.sequence_length, self.input_features
        if observations.ndim == 2 and observations.shape[1] == length * features:
            return observations.reshape(-1, length, features)
        if observations.ndim == 3 and observations.shape[1:] == (length, features):
            return observations
        raise ValueError(
            f"observations must be (B, {length}, {features}) or (B, {length * features}), "
            f"got {tuple(observations.shape)}"
        )


def require_positive(**sizes: int) -> None:
    """SettingsError unless every size is a whole number above 0."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SettingsError(f"{name} must be a positive whole number, got {name}={size!r}")


def require_dropout(dropout: float) -> None:
    """SettingsError unless 0 <= dropout < 1."""
    if not 0 <= dropout < 1:
        raise SettingsError(f"dropout must be at least 0 and below 1, got dropout={dropout!r}")
