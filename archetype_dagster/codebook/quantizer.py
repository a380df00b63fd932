"""Vector quantisation of encodings, Eq. (2) and the codebook and commitment terms of Eq. (4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from archetype_dagster.types import IndexArray


class VectorQuantizer(nn.Module):
    """K code vectors; each encoding is replaced by its nearest one.

    Args:
        num_codes: K.
        dim: dimension D of codes and encodings.
        commitment: weight beta_0 of the commitment term.

    Attributes:
        codes: Parameter (K, D), the code vectors e_k.
    """

    def __init__(self, num_codes: int, dim: int, *, commitment: float = 0.25) -> None:
        super().__init__()
        for name, value in (("num_codes", num_codes), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name} must be positive, got {name}={value}")
        if not commitment >= 0:
            raise ValueError(f"commitment must not be negative, got commitment={commitment}")
        self.commitment = commitment
        self.codes = nn.Parameter(torch.empty(num_codes, dim).uniform_(-1.0 / num_codes, 1.0 / num_codes))

    def nearest(self, z: Tensor) -> Tensor:
        """Index int64 (B,) of the code nearest to each row of z (B, D); ties go to the lowest index (Eq. 2)."""
        if z.ndim != 2 or z.shape[1] != self.codes.shape[1]:
            raise ValueError(f"z must have shape (B, {self.codes.shape[1]}), got {tuple(z.shape)}")
        with torch.no_grad():
            # Differences, not |z|^2 - 2 z.e + |e|^2: equal codes must give equal distances to the last bit.
            return (z.unsqueeze(1) - self.codes).square().sum(dim=-1).argmin(dim=1)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantise encodings.

        Args:
            z: encodings z_e, floating point (B, D).

        Returns:
            z_q (B, D), equal to `codes[indices]` to the last bit, its gradient handed straight to z;
            indices int64 (B,); and the mean over the batch of
            |sg[z_e] - z_q|^2 + beta_0 |z_e - sg[z_q]|^2, sums over dimensions (Eq. 4).
        """
        indices = self.nearest(z)
        chosen = self.codes[indices]
        codebook_term = (z.detach() - chosen).square().sum(dim=-1).mean()
        commitment_term = (z - chosen.detach()).square().sum(dim=-1).mean()
        # z - z.detach() is exactly zero, so the value is the code's own while the gradient is z's.
        straight_through = chosen.detach() + (z - z.detach())
        return straight_through, indices, codebook_term + self.commitment * commitment_term

    @torch.no_grad()
    def reseed(self, code_index: Tensor, vectors: Tensor) -> None:
        """Overwrite the codes at `code_index` int64 (n,) with `vectors` (n, D)."""
        self.codes[code_index] = vectors.to(self.codes)


@dataclass(frozen=True)
class CodeUsage:
    """How a batch of encodings spreads over the codes.

    Attributes:
        counts: int64 (K,), encodings per code.
        used: codes used at least once.
        perplexity: exp of the entropy of the shares, from 1 (collapsed) to K (even); 0 without encodings.
        alarm: fewer than half of the codes live.
    """

    counts: IndexArray
    used: int
    perplexity: float
    alarm: bool


def code_usage(indices: Tensor | IndexArray, num_codes: int) -> CodeUsage:
    """Usage of `num_codes` codes by `indices` (n,)."""
    return usage_of_counts(np.bincount(np.asarray(indices, dtype=np.int64), minlength=num_codes))


def usage_of_counts(counts: IndexArray) -> CodeUsage:
    """Usage from encodings per code, int64 (K,)."""
    used = int(np.count_nonzero(counts))
    shares = counts[counts > 0] / max(int(counts.sum()), 1)
    perplexity = float(np.exp(-(shares * np.log(shares)).sum())) if used else 0.0
    return CodeUsage(counts.astype(np.int64), used, perplexity, alarm=2 * used < len(counts))
