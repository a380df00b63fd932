"""Checks of what a codebook is given, and how it cuts a batch so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from archetype_dagster.types import ActionArray, FloatArray, IndexArray, StateArray

# Sequences decoded or encoded at a time: a few tens of MB whatever the caller asks for.
ROWS_AT_ONCE: Final = 1280

StateInput = StateArray | Tensor


def checked_states(states: StateInput, num_features: int) -> Tensor:
    """States as a tensor; ValueError unless they are float32 (B, steps, F)."""
    rows = torch.as_tensor(states)
    if rows.ndim != 3 or rows.shape[2] != num_features or rows.dtype != torch.float32:
        raise ValueError(f"states must be float32 (B, steps, {num_features}), got {rows.dtype} {tuple(rows.shape)}")
    return rows


def checked_steps(states: Tensor, actions: ActionArray, rewards: FloatArray) -> tuple[Tensor, Tensor]:
    """Actions and rewards as tensors; ValueError unless both are (B, h) like the states (B, h, F)."""
    steps, earned = torch.as_tensor(actions), torch.as_tensor(rewards)
    if not states.shape[:2] == steps.shape == earned.shape:
        raise ValueError(
            f"states, actions and rewards must share (B, h), got {tuple(states.shape[:2])}, {tuple(steps.shape)} "
            f"and {tuple(earned.shape)}"
        )
    return steps, earned


def checked_codes(codes: IndexArray, num_codes: int) -> IndexArray:
    """Codes as int64; ValueError unless they are (B,) in 0..K-1."""
    checked = np.asarray(codes, dtype=np.int64)
    if checked.ndim != 1 or (checked.size and not 0 <= checked.min() <= checked.max() < num_codes):
        raise ValueError(f"codes must be (B,) in 0..{num_codes - 1}, got {codes!r}")
    return checked


def checked_embeddings(embeddings: StateInput, rows: int, code_dim: int) -> Tensor:
    """Embeddings as a tensor; ValueError unless they are float32 (B, S, D) with B = `rows` and S >= 1."""
    vectors = torch.as_tensor(embeddings)
    fits = vectors.ndim == 3 and vectors.shape[0] == rows and vectors.shape[1] > 0 and vectors.shape[2] == code_dim
    if not fits or vectors.dtype != torch.float32:
        raise ValueError(
            f"embeddings must be float32 ({rows}, S, {code_dim}), got {vectors.dtype} {tuple(vectors.shape)}"
        )
    return vectors


def chunks(total: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cut 0..total."""
    return (slice(start, start + size) for start in range(0, total, size))
