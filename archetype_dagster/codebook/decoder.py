"""Decoder p(action | states, code) of Phase I, Eq. (3): a code turns the states of a horizon into actions."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from archetype_dagster.codebook.recurrence import CodeScan
from archetype_dagster.settings import DecoderKind

LstmState = tuple[Tensor, Tensor]
_FEWEST_ROWS: Final = 64
_ROW_BLOCK: Final = 8


class ArchetypeDecoder(nn.Module):
    """LSTM over [state, code] with three logits (short, flat, long) a step.

    Kind `lstm` is causal: logits at t depend on states up to t. Kind `bilstm` reads the whole horizon,
    its future included, and is flagged hindsight wherever it is used.

    Args:
        num_features: features F of a state.
        code_dim: dimension D of a code.
        hidden_size: units of the LSTM, per direction.
        kind: `lstm` or `bilstm`.
    """

    def __init__(self, num_features: int, code_dim: int, hidden_size: int, kind: DecoderKind = "lstm") -> None:
        super().__init__()
        if kind not in ("lstm", "bilstm"):
            raise ValueError(f"kind must be 'lstm' or 'bilstm', got kind={kind!r}")
        self.kind = kind
        self.num_features = num_features
        self.hidden_size = hidden_size
        self.lstm = nn.LSTM(num_features + code_dim, hidden_size, batch_first=True, bidirectional=self.hindsight)
        self.head = nn.Linear(hidden_size * (2 if self.hindsight else 1), 3)

    @property
    def hindsight(self) -> bool:
        """True where logits at t depend on states after t."""
        return self.kind == "bilstm"

    def forward(self, states: Tensor, z_q: Tensor) -> Tensor:
        """Logits (B, h, 3) for states (B, h, F) and one code vector a horizon (B, D); differentiable."""
        steps = states.shape[1]
        hidden, _ = self.lstm(torch.cat([states, z_q.unsqueeze(1).expand(-1, steps, -1)], dim=-1))
        logits: Tensor = self.head(hidden)
        return logits

    @torch.no_grad()
    def decode_logits(self, states: Tensor, codes: Tensor, indices: Tensor | None = None) -> Tensor:
        """Logits without gradient, equal to `forward` up to rounding.

        The states are projected once per horizon however many codes run on it, and what runs beside a
        horizon does not change its logits.

        Args:
            states: float32 (B, h, F).
            codes: float32 (K, D), the code vectors, or (B, K, D), each horizon's own.
            indices: int64 (B,), the code of each horizon where all share theirs; None runs all K codes on each.

        Returns:
            (B, h, 3) with `indices`, (B, K, h, 3) without.
        """
        batch, steps, _ = states.shape
        rows_each = codes.shape[-2] if indices is None else 1
        # Matrix products of few rows, and the rows left over from a block, are rounded by other routines.
        fewest = max(batch, -(-_FEWEST_ROWS // rows_each))
        missing = -(-fewest // _ROW_BLOCK) * _ROW_BLOCK - batch
        padded = torch.cat([states, states.new_zeros(missing, steps, self.num_features)]) if missing else states
        own = codes.ndim == 3
        vectors = nn.functional.pad(codes, (0, 0, 0, 0, 0, missing)) if own else codes
        logits = self.head.bias.expand(steps, len(padded) * rows_each, 3).clone()
        weights = self.head.weight.t().chunk(2 if self.hindsight else 1)
        for weight, reverse in zip(weights, (False, True), strict=False):
            scan = CodeScan.of(self.lstm, self.num_features, reverse=reverse)
            offsets = scan.offsets(vectors)
            if indices is None:
                chosen = offsets if own else offsets[None]
            else:
                chosen = offsets[nn.functional.pad(indices, (0, missing))][:, None]
            for t, hidden in scan.hidden_states(padded, chosen):
                logits[t].addmm_(hidden, weight)
        by_horizon = logits.view(steps, len(padded), rows_each, 3).permute(1, 2, 0, 3)[:batch]
        return by_horizon if indices is None else by_horizon[:, 0]

    def initial_state(self, batch: int) -> LstmState:
        """Zero state (hidden, cell), each (batch, H), at a horizon's first bar."""
        zeros = self.head.weight.new_zeros(batch, self.hidden_size)
        return zeros, zeros.clone()

    def step(self, states: Tensor, z_q: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """One bar of the causal decoder, in plain operations that export to other runtimes.

        Args:
            states: (B, F) of this bar.
            z_q: (B, D).
            state: (hidden, cell), each (B, H), from the bar before or `initial_state`.

        Returns:
            Logits (B, 3) and the new state.

        Raises:
            ValueError: the decoder is bidirectional, so it has no next step.
        """
        if self.hindsight:
            raise ValueError("a bilstm decoder reads the whole horizon and has no single step")
        hidden, cell = state
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.all_weights[0]
        gates = nn.functional.linear(torch.cat([states, z_q], dim=-1), input_weight, input_bias)
        gates = gates + nn.functional.linear(hidden, hidden_weight, hidden_bias)
        entry, forget, candidate, exit_ = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(candidate)
        hidden = torch.sigmoid(exit_) * torch.tanh(cell)
        return self.head(hidden), (hidden, cell)
