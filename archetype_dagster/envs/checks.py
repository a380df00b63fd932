"""Actions, starts and bounds that several environments check in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.types import BoolArray, FloatArray, IndexArray

# Bound of observations: finite, so that a space says that no infinity is ever shown.
LARGEST: Final = float(np.finfo(np.float32).max)


def check_begun(is_over: bool) -> None:
    """Refuse a step that no episode is there for.

    Raises:
        ResetNeeded: the episode is over, or none has begun.
    """
    if is_over:
        raise gym.error.ResetNeeded("the episode is over or none has begun: call reset")


def checked_choice(action: ArrayLike, choices: int) -> int:
    """One of `choices` discrete actions as an int.

    Raises:
        ValueError: not a single integer, or outside 0..choices-1.
    """
    taken = np.asarray(action)
    if taken.shape not in ((), (1,)) or not np.issubdtype(taken.dtype, np.integer):
        raise ValueError(f"action must be one integer, got {action!r}")
    choice = int(taken.reshape(()))
    if not 0 <= choice < choices:
        raise ValueError(f"action must lie in 0..{choices - 1}, got {choice}")
    return choice


def drawn_start(
    starts: IndexArray, is_start: BoolArray, generator: np.random.Generator, options: Mapping[str, Any] | None
) -> int:
    """The row of `options["start"]`, or one of `starts` drawn uniformly.

    Raises:
        ValueError: an unknown option, or a row that is no start.
    """
    chosen = dict(options or {})
    start = chosen.pop("start", None)
    if chosen:
        raise ValueError(f"options may hold 'start' only, got {sorted(chosen)}")
    if start is None:
        return int(starts[generator.integers(len(starts))])
    if not (0 <= start < len(is_start) and is_start[start]):
        raise ValueError(f"start must be a row that a whole horizon follows, got start={start}")
    return int(start)


def checked_targets(actions: ArrayLike, shape: tuple[int, ...], *, discrete: bool) -> FloatArray:
    """Actions as target positions in units, float64 of `shape`.

    Raises:
        ValueError: another shape, NaN, or an action outside -1..1 (outside 0, 1, 2 where discrete).
    """
    taken: NDArray[np.generic] = np.asarray(actions)
    if taken.shape != shape:
        raise ValueError(f"actions must have shape {shape}, got shape {taken.shape}")
    if discrete:
        if not np.issubdtype(taken.dtype, np.integer):
            raise ValueError(f"discrete actions must be integers, got dtype {taken.dtype}")
        targets = taken.astype(np.float64) - 1.0
    else:
        targets = taken.astype(np.float64)
    # Written so that NaN is refused as well.
    if not (np.abs(targets) <= 1.0).all():
        allowed = "0 (short), 1 (flat) or 2 (long)" if discrete else "finite and lie in -1..1"
        raise ValueError(f"actions must be {allowed}, got {taken[~(np.abs(targets) <= 1.0)][0]}")
    return targets
