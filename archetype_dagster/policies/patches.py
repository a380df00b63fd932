"""A transformer over patches of bars, for lookbacks of a year of days and more (PatchTST, Nie et al. 2023)."""

from __future__ import annotations

import math

import torch
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.attention import TokenEncoder
from archetype_dagster.policies.backbone import Backbone, require_positive
from archetype_dagster.policies.registry import register_backbone

_VARIANCE_FLOOR = 1e-5


@register_backbone("PatchTSTBackbone")
class PatchTSTBackbone(Backbone):
    """Self-attention over patches of consecutive bars, read at the patch that ends with the current bar.

    Patches are laid from the current bar backwards, so the newest bar ends a patch whatever the lengths are; where
    the oldest patch begins before the window, the oldest bar is repeated. A patch holds all features of its bars,
    because a policy needs what they say together; `channel_independent` encodes each feature by itself with shared
    weights as in the paper, at F times the cost, and joins them at the end.

    Args:
        input_features: numbers F of a row.
        sequence_length: rows L of a window.
        output_dim: features that come out.
        patch_length: bars of a patch.
        stride: bars from one patch to the next; None for patch_length.
        d_model: numbers of a token, even or odd.
        n_heads: attention heads.
        n_layers: encoder layers.
        d_ff: units of each feed-forward layer.
        dropout: probability while training.
        instance_norm: scale each feature by its own window first, see `ReversibleInstanceNorm`; the level and scale
            taken out are given to the head, so that they are not lost.
        channel_independent: one sequence of patches for each feature.

    Raises:
        SettingsError: a size below 1, a dropout outside [0, 1), a patch longer than the window or a stride longer
            than a patch, which would skip bars.
    """

    def __init__(
        self,
        input_features: int,
        sequence_length: int = 32,
        output_dim: int = 128,
        *,
        patch_length: int = 4,
        stride: int | None = None,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        d_ff: int = 128,
        dropout: float = 0.1,
        instance_norm: bool = False,
        channel_independent: bool = False,
    ) -> None:
        super().__init__(input_features, sequence_length, output_dim)
        stride = patch_length if stride is None else stride
        require_positive(patch_length=patch_length, stride=stride)
        if patch_length > sequence_length:
            raise SettingsError(
                f"patch_length must not exceed sequence_length, got {patch_length} and {sequence_length}"
            )
        if stride > patch_length:
            raise SettingsError(f"stride must not exceed patch_length, got {stride} and {patch_length}")
        self.num_patches = math.ceil((sequence_length - patch_length) / stride) + 1
        self.channel_independent = channel_independent
        rows = _patch_rows(sequence_length, self.num_patches, patch_length, stride)
        self.register_buffer("patch_rows", rows, persistent=False)
        self.patch_rows: torch.Tensor
        self.instance_norm = ReversibleInstanceNorm(input_features) if instance_norm else None
        self.embedding = nn.Linear(patch_length * (1 if channel_independent else input_features), d_model)
        self.encoder = TokenEncoder(self.num_patches, d_model, n_heads, n_layers, d_ff, dropout)
        read = d_model * (input_features if channel_independent else 1) + 2 * input_features * instance_norm
        self.head = nn.Linear(read, output_dim)

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """See `Backbone.encode`."""
        if self.instance_norm is None:
            read = self._read(windows)
        else:
            scaled, mean, deviation = self.instance_norm(windows)
            read = torch.cat((self._read(scaled), mean, deviation.log()), dim=1)
        features: torch.Tensor = self.head(read)
        return features

    def patches(self, windows: torch.Tensor) -> torch.Tensor:
        """float32 (B, L, F) -> (B, N, patch_length, F), oldest patch first."""
        return windows[:, self.patch_rows]

    def _read(self, windows: torch.Tensor) -> torch.Tensor:
        patches = self.patches(windows)
        sequences = patches.permute(0, 3, 1, 2).flatten(0, 1) if self.channel_independent else patches.flatten(2)
        newest: torch.Tensor = self.encoder(self.embedding(sequences))
        return newest.reshape(-1, newest.shape[1] * self.input_features) if self.channel_independent else newest


class ReversibleInstanceNorm(nn.Module):
    """Each feature by its window's mean and deviation, then a learnt scale and shift (RevIN, Kim et al. 2022).

    Args:
        num_features: numbers F of a row.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features))
        self.shift = nn.Parameter(torch.zeros(num_features))

    def forward(self, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """float32 (B, L, F) -> scaled windows (B, L, F), means (B, F) and deviations (B, F), which are above 0."""
        mean = windows.mean(dim=1)
        deviation = (windows.var(dim=1, correction=0) + _VARIANCE_FLOOR).sqrt()
        scaled = (windows - mean.unsqueeze(1)) / deviation.unsqueeze(1)
        return scaled * self.scale + self.shift, mean, deviation

    def reverse(self, scaled: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        """The windows that `forward` scaled."""
        return (scaled - self.shift) / self.scale * deviation.unsqueeze(1) + mean.unsqueeze(1)


def _patch_rows(length: int, count: int, patch_length: int, stride: int) -> torch.Tensor:
    """Row of each patch's bars, int64 (N, patch_length); places before the window hold row 0."""
    starts = length - patch_length - stride * torch.arange(count - 1, -1, -1)
    return (starts.unsqueeze(1) + torch.arange(patch_length)).clamp(min=0)
