"""What every function of this package requires of its arrays, and the blocks it works through them in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.types import LONG, SHORT, ActionArray, FloatArray

# A block's temporaries (a quarter of a megabyte each) stay in the processor's cache.
_BLOCK_CELLS: Final = 1 << 15


def price_arrays(mark: ArrayLike, costs: ArrayLike, *, max_position: float) -> tuple[FloatArray, FloatArray]:
    """Mark prices (..., h + 1) and costs (..., h, 3, 3) as float64, with their shapes checked.

    Raises:
        ValueError: shapes that do not belong together, a price that is not finite, or a position size that is
            not positive.
    """
    if not (math.isfinite(max_position) and max_position > 0):
        raise ValueError(f"max_position must be positive and finite, got max_position={max_position}")
    mark = np.asarray(mark, dtype=np.float64)
    costs = np.asarray(costs, dtype=np.float64)
    if mark.ndim < 1 or mark.shape[-1] < 2:
        raise ValueError(f"mark must hold h + 1 >= 2 prices on its last axis, got mark of shape {mark.shape}")
    horizon = mark.shape[-1] - 1
    if costs.shape != (*mark.shape[:-1], horizon, 3, 3):
        raise ValueError(
            f"costs must be (..., h, 3, 3) with the batch and h={horizon} of mark (..., h + 1) {mark.shape}, "
            f"got costs of shape {costs.shape}"
        )
    require_finite(mark, name="mark")
    return mark, costs


def action_array(actions: ArrayLike, *, horizon: int) -> ActionArray:
    """Actions (..., h) as int8.

    Raises:
        ValueError: another horizon, a type that is not integer, or a value outside 0, 1, 2.
    """
    array = np.asarray(actions)
    if array.ndim < 1 or array.shape[-1] != horizon:
        raise ValueError(f"actions must hold h={horizon} steps on their last axis, got shape {array.shape}")
    return valid_actions(array, name="actions")


def valid_actions(actions: ArrayLike, *, name: str) -> ActionArray:
    """Actions of any shape as int8; `ValueError` names the argument and the first bad value."""
    array = np.asarray(actions)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    outside = (array < SHORT) | (array > LONG)
    if outside.any():
        raise ValueError(f"{name} must be 0 (short), 1 (flat) or 2 (long), got {array[outside].flat[0]}")
    return array.astype(np.int8, copy=False)


def require_finite(values: FloatArray, *, name: str) -> None:
    """Raise `ValueError` naming the first place where `values`, or what they were made from, is not a number."""
    finite = np.isfinite(values)
    if not finite.all():
        place = tuple(int(index) for index in np.argwhere(~finite)[0])
        raise ValueError(f"mark and costs must be finite, but the {name} at index {place} is {values[place]}")


def batch_blocks(batch: int, horizon: int) -> Iterator[slice]:
    """Slices that cut a batch of horizons into blocks whose temporaries stay small."""
    rows = max(1, _BLOCK_CELLS // horizon)
    for start in range(0, batch, rows):
        yield slice(start, min(start + rows, batch))
