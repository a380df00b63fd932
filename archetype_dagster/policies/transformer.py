"""A transformer encoder with one token a bar, for lookbacks of about 30 to 100 bars."""

from __future__ import annotations

import torch
from torch import nn

from archetype_dagster.policies.attention import TokenEncoder
from archetype_dagster.policies.backbone import Backbone
from archetype_dagster.policies.registry import register_backbone


@register_backbone("TransformerBackbone")
class TransformerBackbone(Backbone):
    """Self-attention over the bars of a window, read at the current one.

    Its cost grows with the square of the lookback; `PatchTSTBackbone` is for long ones.

    Args:
        input_features: numbers F of a row.
        sequence_length: rows L of a window.
        output_dim: features that come out.
        n_heads: attention heads.
        n_layers: encoder layers.
        d_ff: units of each feed-forward layer.
        dropout: probability while training.
        d_model: numbers of a token, even or odd; None for output_dim.

    Raises:
        SettingsError: a size below 1 or a dropout outside [0, 1).
    """

    def __init__(
        self,
        input_features: int,
        sequence_length: int = 30,
        output_dim: int = 128,
        *,
        n_heads: int = 4,
        n_layers: int = 2,
        d_ff: int = 256,
        dropout: float = 0.1,
        d_model: int | None = None,
    ) -> None:
        super().__init__(input_features, sequence_length, output_dim)
        width = output_dim if d_model is None else d_model
        self.encoder = TokenEncoder(sequence_length, width, n_heads, n_layers, d_ff, dropout)
        self.embedding = nn.Linear(input_features, width)
        self.head = nn.Linear(width, output_dim)

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """See `Backbone.encode`."""
        features: torch.Tensor = self.head(self.encoder(self.embedding(windows)))
        return features
