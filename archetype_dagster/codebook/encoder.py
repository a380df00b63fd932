"""Encoder q(z_e | states, actions, rewards) of Phase I, Eq. (1)."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor, nn

REWARD_SCALE: Final = 100.0


class TrajectoryEncoder(nn.Module):
    """LSTM over [state, one-hot action, reward] whose outputs are pooled into one vector a horizon.

    Args:
        num_features: features F of a state.
        hidden_size: units of the LSTM.
        code_dim: dimension D of the encoding.
        pooling: `last` takes the last hidden state, `attention` a learned softmax average over the steps.
    """

    def __init__(
        self,
        num_features: int,
        hidden_size: int,
        code_dim: int,
        pooling: Literal["last", "attention"] = "last",
    ) -> None:
        super().__init__()
        if pooling not in ("last", "attention"):
            raise ValueError(f"pooling must be 'last' or 'attention', got pooling={pooling!r}")
        self.lstm = nn.LSTM(num_features + 4, hidden_size, batch_first=True)
        self.attention = nn.Linear(hidden_size, 1, bias=False) if pooling == "attention" else None
        self.head = nn.Linear(hidden_size, code_dim)

    def forward(self, states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        """Encodings z_e (B, D).

        Args:
            states: (B, h, F).
            actions: int64 (B, h) in {0, 1, 2}.
            rewards: (B, h), fractions of the notional m p_0; the network reads them in percent so that
                they are of the size of its other inputs.
        """
        one_hot = nn.functional.one_hot(actions, 3).to(states.dtype)
        percent = (REWARD_SCALE * rewards).to(states.dtype).unsqueeze(-1)
        hidden, (last, _) = self.lstm(torch.cat([states, one_hot, percent], dim=-1))
        pooled = last[0]
        if self.attention is not None:
            weights = torch.softmax(self.attention(hidden), dim=1)
            pooled = (weights * hidden).sum(dim=1)
        encodings: Tensor = self.head(pooled)
        return encodings
