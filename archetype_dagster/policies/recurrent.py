"""A recurrent network over the bars of a window: small, and causal unless told otherwise."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.backbone import Backbone, require_dropout, require_positive
from archetype_dagster.policies.registry import register_backbone

_CELLS: Final[dict[str, type[nn.LSTM | nn.GRU | nn.RNN]]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@register_backbone("RecurrentBackbone")
class RecurrentBackbone(Backbone):
    """An LSTM, GRU or plain RNN that reads forwards from a zero state and is read at the current bar.

    Args:
        input_features: numbers F of a row.
        sequence_length: rows L of a window.
        output_dim: features that come out.
        cell: lstm, gru or rnn (tanh).
        hidden_size: units of each layer.
        num_layers: layers.
        dropout: probability between layers while training.
        bidirectional: also read backwards from the current bar; still no later bar than that is seen.

    Raises:
        SettingsError: unknown cell, a size below 1 or a dropout outside [0, 1), or one where there is one layer only.
    """

    def __init__(
        self,
        input_features: int,
        sequence_length: int = 30,
        output_dim: int = 128,
        *,
        cell: str = "lstm",
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_features, sequence_length, output_dim)
        require_positive(hidden_size=hidden_size, num_layers=num_layers)
        require_dropout(dropout)
        if cell not in _CELLS:
            raise SettingsError(f"unknown cell {cell!r}; choose from {', '.join(_CELLS)}")
        if dropout > 0 and num_layers == 1:
            raise SettingsError(f"dropout acts between layers and needs num_layers above 1, got dropout={dropout}")
        self.hidden_size = hidden_size
        self.bidirectional = bidirectional
        self.recurrence = _CELLS[cell](
            input_features,
            hidden_size,
            num_layers,
            batch_first=True,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        self.head = nn.Linear(hidden_size * (1 + bidirectional), output_dim)

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """See `Backbone.encode`."""
        outputs = self.recurrence(windows)[0]
        read = outputs[:, -1, : self.hidden_size]
        if self.bidirectional:
            read = torch.cat((read, outputs[:, 0, self.hidden_size :]), dim=1)
        features: torch.Tensor = self.head(read)
        return features
