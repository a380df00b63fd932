"""Moments over trailing windows in which no bit depends on anything outside the window.

Running sums would carry the residue of every earlier value; here each window is put together from
blocks of doubling length, which is exact for constant windows, stable, and takes log2(window) passes.
"""

from __future__ import annotations

from collections import deque
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


class RollingMoments:
    """The newest entry of `window_moments`, value by value and bit for bit: the blocks before are kept.

    Args:
        series: number n of series that grow together.
        window: values per window, at least 1.

    Raises:
        ValueError: no series or no window.
    """

    def __init__(self, series: int, window: int) -> None:
        if series < 1 or window < 1:
            raise ValueError(f"series and window must be positive, got series={series} and window={window}")
        self._window = window
        # By bit of the window: the blocks of that many values which ended lately, newest last.
        self._blocks = [
            deque([_Block(1 << bit, np.zeros(series), np.zeros(series))] * window, maxlen=window)
            for bit in range(window.bit_length())
        ]

    def push(self, values: FloatArray) -> Moments:
        """Take the next value of each series; the moments, (n,), meaningless before `window` values.

        Args:
            values: float64 (n,), finite; kept, so not to be changed afterwards.
        """
        block = _Block(1, values, np.zeros_like(values))
        for bit, ended in enumerate(self._blocks):
            if bit:
                block = _join(self._blocks[bit - 1][-1 - block.size], block)
            ended.append(block)
        first, *longer = (bit for bit in range(len(self._blocks)) if self._window >> bit & 1)
        whole = self._blocks[first][-1]
        for bit in longer:
            whole = _join(self._blocks[bit][-1 - whole.size], whole)
        return Moments(whole.mean, np.sqrt(whole.squares / self._window))

    def values(self) -> FloatArray:
        """The last `window` values of each series, oldest first, float64 (n, window); 0 where none came yet."""
        return np.stack([block.mean for block in self._blocks[0]], axis=-1)


def _merge(older: _Block, newer: _Block) -> _Block:
    """Blocks of `older.size + newer.size` values: each older block with the newer one right after it."""
    count = newer.mean.shape[-1] - older.size
    return _join(
        _Block(older.size, older.mean[..., :count], older.squares[..., :count]),
        _Block(newer.size, newer.mean[..., older.size :], newer.squares[..., older.size :]),
    )


def _join(older: _Block, newer: _Block) -> _Block:
    """Each older block with the newer one beside it, which follows right after it in time."""
    size = older.size + newer.size
    shift = newer.mean - older.mean
    mean = older.mean + shift * (newer.size / size)
    spread = shift * shift * (older.size * newer.size / size)
    return _Block(size, mean, older.squares + newer.squares + spread)
