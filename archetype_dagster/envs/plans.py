"""Decoded plans by horizon start, so that an environment decodes each of them once and many at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from archetype_dagster.types import ActionArray, IndexArray

_BLOCK = 16


class DecodedPlans:
    """Action sequences of horizon starts, decoded for a block of neighbouring starts when one is asked for, and kept.

    Args:
        starts: int64 (n,), growing.
        decode: starts int64 (B,) to their plans, int8 (B, ...).
    """

    def __init__(self, starts: IndexArray, decode: Callable[[IndexArray], ActionArray]) -> None:
        self._starts = starts
        self._decode = decode
        self._blocks: dict[int, ActionArray] = {}

    def at(self, start: int) -> ActionArray:
        """The plans of one of the starts, int8 (...)."""
        block, place = divmod(int(np.searchsorted(self._starts, start)), _BLOCK)
        if block not in self._blocks:
            self._blocks[block] = self._decode(self._starts[block * _BLOCK : (block + 1) * _BLOCK])
        plans: ActionArray = self._blocks[block][place]
        return plans
