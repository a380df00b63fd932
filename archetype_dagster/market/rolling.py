"""Moments over trailing windows in which no bit depends on anything outside the window.

Running sums would carry the residue of every earlier value; here each window is put together from
blocks of doubling length, which is exact for constant windows, stable, and takes log2(window) passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archetype_dagster.types import FloatArray


class Moments(NamedTuple):
    """Mean and population standard deviation of each window, float64 (..., T - window + 1)."""

    mean: FloatArray
    std: FloatArray


class _Block(NamedTuple):
    size: int
    mean: FloatArray
    squares: FloatArray


def window_moments(values: FloatArray, window: int) -> Moments:
    """Mean and standard deviation (divisor `window`) of every run of `window` consecutive values.

    Entry i covers values[..., i : i + window], so it belongs to row i + window - 1. Blocks are merged
    by the pairwise update of Chan, Golub and LeVeque, so nothing cancels.

    Args:
        values: float64 (..., T), finite, T >= window; each series by itself.
        window: values per window, at least 1.

    Raises:
        ValueError: window out of range.
    """
    if not 1 <= window <= values.shape[-1]:
        raise ValueError(f"window must lie between 1 and the {values.shape[-1]} values, got window={window}")
    block = _Block(1, values, np.zeros_like(values))
    pieces = []
    for bit in range(window.bit_length()):
        if bit:
            block = _merge(block, block)
        if window >> bit & 1:
            pieces.append(block)
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = _merge(piece, whole)
    return Moments(whole.mean, np.sqrt(whole.squares / window))


def _merge(older: _Block, newer: _Block) -> _Block:
    """Blocks of `older.size + newer.size` values: each older block with the newer one right after it."""
    size = older.size + newer.size
    count = newer.mean.shape[-1] - older.size
    shift = newer.mean[..., older.size :] - older.mean[..., :count]
    mean = older.mean[..., :count] + shift * (newer.size / size)
    spread = shift * shift * (older.size * newer.size / size)
    squares = older.squares[..., :count] + newer.squares[..., older.size :] + spread
    return _Block(size, mean, squares)
