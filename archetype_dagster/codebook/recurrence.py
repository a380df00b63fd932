"""The decoder's recurrence at inference, with the projection of a horizon's states shared by all codes.

Belongs here: reading an `nn.LSTM`'s weights into a scan that needs no gradient. Training runs the
`nn.LSTM` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class CodeScan:
    """One direction of an LSTM over [state, code], split into what varies over time and what does not.

    tanh(x) is computed as 2 sigmoid(2x) - 1, four times cheaper on a CPU; with the cell gate's weights
    doubled beforehand one sigmoid serves all four gates. Gates lie in torch's order: input, forget,
    cell, output.

    Attributes:
        state_weight: (F, 4H), from a step's state.
        code_weight: (D, 4H), from the code.
        hidden_weight: (H, 4H), from the previous hidden state.
        bias: (4H,).
        reverse: whether time runs from the horizon's end.
    """

    state_weight: Tensor
    code_weight: Tensor
    hidden_weight: Tensor
    bias: Tensor
    reverse: bool

    @classmethod
    def of(cls, lstm: nn.LSTM, num_features: int, *, reverse: bool = False) -> Self:
        """The forward or the reverse direction of `lstm`, whose first `num_features` inputs are the state."""
        suffix = "_reverse" if reverse else ""
        weight = {
            name: getattr(lstm, f"{name}_l0{suffix}").detach()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        scale = weight["bias_ih"].new_ones(4, lstm.hidden_size)
        scale[2] = 2.0
        scale = scale.reshape(-1)
        inputs = weight["weight_ih"].t() * scale
        return cls(
            state_weight=inputs[:num_features].contiguous(),
            code_weight=inputs[num_features:].contiguous(),
            hidden_weight=weight["weight_hh"].t() * scale,
            bias=(weight["bias_ih"] + weight["bias_hh"]) * scale,
            reverse=reverse,
        )

    def offsets(self, codes: Tensor) -> Tensor:
        """What each code vector (..., D) adds to the gates at every step: (..., 4H), bias included."""
        return codes @ self.code_weight + self.bias

    def hidden_states(self, states: Tensor, offsets: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (t, hidden (B * K, H)) in this direction's order of time.

        The yielded tensor is overwritten by the next step: use it before asking for more.

        Args:
            states: (B, h, F).
            offsets: (B, K, 4H), or (1, K, 4H) where every horizon runs the same codes.
        """
        batch, steps, _ = states.shape
        width = self.bias.shape[0]
        size = width // 4
        projected = states.transpose(0, 1) @ self.state_weight
        gates = states.new_empty(batch, offsets.shape[1], width)
        flat = gates.view(-1, width)
        entry, forget, candidate, exit_ = flat.chunk(4, dim=1)
        hidden = states.new_zeros(len(flat), size)
        cell = torch.zeros_like(hidden)
        squashed = torch.empty_like(hidden)
        for t in reversed(range(steps)) if self.reverse else range(steps):
            torch.add(projected[t].unsqueeze(1), offsets, out=gates)
            flat.addmm_(hidden, self.hidden_weight).sigmoid_()
            candidate.mul_(2.0).sub_(1.0)
            cell.mul_(forget).addcmul_(entry, candidate)
            torch.mul(cell, 2.0, out=squashed).sigmoid_().mul_(2.0).sub_(1.0)
            torch.mul(exit_, squashed, out=hidden)
            yield t, hidden
