"""Self-attention over the tokens of a window, read at the newest one (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from archetype_dagster.policies.backbone import require_dropout, require_positive


def sinusoidal_positions(length: int, width: int) -> torch.Tensor:
    """Sine on even and cosine on odd columns, wavelengths from 2 pi to 10,000 * 2 pi: float32 (length, width)."""
    columns = torch.arange(width)
    rates = torch.exp(-math.log(10_000.0) * (columns - columns % 2).float() / width)
    angles = torch.arange(length).float().unsqueeze(1) * rates
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


class TokenEncoder(nn.Module):
    """Pre-norm encoder layers over tokens whose places are told apart by added sines.

    Only the newest token is read, so the last layer asks its question alone and the rest only answer.

    Args:
        length: tokens N.
        d_model: numbers of a token, even or odd.
        n_heads: attention heads; where they do not divide d_model, each is rounded up.
        n_layers: layers.
        d_ff: units of each feed-forward layer.
        dropout: probability, in attention, after each half of a layer and on the tokens.

    Raises:
        SettingsError: a size below 1 or a dropout outside [0, 1).
    """

    def __init__(self, length: int, d_model: int, n_heads: int, n_layers: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        require_positive(d_model=d_model, n_heads=n_heads, n_layers=n_layers, d_ff=d_ff)
        require_dropout(dropout)
        self.register_buffer("positions", sinusoidal_positions(length, d_model), persistent=False)
        self.positions: torch.Tensor
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 (B, N, d_model), oldest first, -> the newest token, (B, d_model)."""
        tokens = self.dropout(tokens + self.positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens, tokens[:, -1:] if index == last else tokens)
        newest: torch.Tensor = self.norm(tokens[:, -1])
        return newest


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each behind its own norm and beside a residual path."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, n_heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, asking: torch.Tensor) -> torch.Tensor:
        """All tokens (B, N, d_model) and those that ask (B, M, d_model), a part of them, -> (B, M, d_model)."""
        answers = self.attention(self.attention_norm(tokens), self.attention_norm(asking))
        asking = asking + self.dropout(answers)
        result: torch.Tensor = asking + self.dropout(self.feed_forward(self.feed_forward_norm(asking)))
        return result


class SelfAttention(nn.Module):
    """Scaled dot-product attention of several heads, each of ceil(d_model / n_heads) numbers.

    Queries, keys and values have no bias: a key's would shift all of a query's scores alike, and so never learn.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_size = math.ceil(d_model / n_heads)
        inner = n_heads * self.head_size
        self.queries = nn.Linear(d_model, inner, bias=False)
        self.keys = nn.Linear(d_model, inner, bias=False)
        self.values = nn.Linear(d_model, inner, bias=False)
        self.joined = nn.Linear(inner, d_model)
        self.dropout = dropout

    def forward(self, tokens: torch.Tensor, asking: torch.Tensor) -> torch.Tensor:
        """Every token is looked at, (B, N, d_model), by those that ask, (B, M, d_model): -> (B, M, d_model)."""
        heads = functional.scaled_dot_product_attention(
            self._split(self.queries(asking)),
            self._split(self.keys(tokens)),
            self._split(self.values(tokens)),
            dropout_p=self.dropout if self.training else 0.0,
        )
        joined: torch.Tensor = self.joined(heads.transpose(1, 2).flatten(2))
        return joined

    def _split(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.reshape(-1, numbers.shape[1], self.n_heads, self.head_size).transpose(1, 2)
