"""Combinatorial splits of time: every choice of held-out stretches, with training kept clear of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from archetype_dagster.errors import SettingsError
from archetype_dagster.types import BoolArray, IndexArray


@dataclass(frozen=True)
class CombinatorialSplit:
    """One choice of held-out groups.

    Attributes:
        test_groups: held-out groups, ascending.
        train: int64 (n,), bars to train on, ascending, purged and embargoed.
        test: int64 (k,), bars held out, ascending.
    """

    test_groups: tuple[int, ...]
    train: IndexArray
    test: IndexArray


def combinatorial_purged_splits(
    num_bars: int, groups: int, test_groups: int, purge_bars: int, embargo_bars: int
) -> Iterator[CombinatorialSplit]:
    """Every way to hold out `test_groups` of `groups` equal stretches of time (Lopez de Prado 2018, chapter 12).

    A training bar is dropped where its result could reach into a held-out stretch, or a held-out result
    into it (`purge_bars` on either side), and for `embargo_bars` more after the stretch.

    Args:
        num_bars: T, number of bars.
        groups: number of consecutive groups that the bars are cut into; their sizes differ by one at most.
        test_groups: groups held out at a time, in [1, groups).
        purge_bars: bars that a decision's result reaches ahead.
        embargo_bars: further bars, e.g. what features read back.

    Yields:
        One split a combination, in lexicographic order of its held-out groups.

    Raises:
        ValueError: numbers out of range, or groups too short to be purged on both sides.
    """
    edges = group_edges(num_bars, groups, purge_bars=purge_bars, embargo_bars=embargo_bars)
    bars = np.arange(num_bars)
    owner = np.searchsorted(edges, bars, side="right") - 1
    from_start, to_end = bars - edges[owner], edges[owner + 1] - 1 - bars
    for held_out in held_out_groups(groups, test_groups):
        after, before = neighbours_held_out(held_out)
        dropped = (after[owner] & (from_start < purge_bars + embargo_bars)) | (before[owner] & (to_end < purge_bars))
        test = held_out[owner]
        yield CombinatorialSplit(
            test_groups=tuple(map(int, np.flatnonzero(held_out))),
            train=np.flatnonzero(~test & ~dropped),
            test=np.flatnonzero(test),
        )


def group_edges(num_bars: int, groups: int, *, purge_bars: int, embargo_bars: int) -> IndexArray:
    """First bar of each group and the end of the last, int64 (groups + 1,).

    Raises:
        ValueError: fewer than two groups, or negative bars to drop.
        SettingsError: groups that these would leave empty, as short splits do to the groups of a profile.
    """
    if groups < 2:
        raise ValueError(f"groups must be at least 2, got groups={groups}")
    for name, value in (("purge_bars", purge_bars), ("embargo_bars", embargo_bars)):
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {name}={value}")
    if num_bars // groups <= 2 * purge_bars + embargo_bars:
        raise SettingsError(
            f"{groups} groups of {num_bars} bars must be longer than the {2 * purge_bars + embargo_bars} bars that "
            f"are dropped from them, got {num_bars // groups} bars each: take fewer groups "
            "(statistics.overfitting_groups) or drop fewer bars (statistics.purge_bars, embargo_bars)"
        )
    return np.arange(groups + 1, dtype=np.int64) * num_bars // groups


def held_out_groups(groups: int, test_groups: int) -> BoolArray:
    """Which groups each combination holds out, bool (C, groups), in lexicographic order.

    Raises:
        ValueError: test_groups outside [1, groups).
    """
    if not 1 <= test_groups < groups:
        raise ValueError(f"test_groups must be at least 1 and below groups={groups}, got test_groups={test_groups}")
    chosen = np.array(list(combinations(range(groups), test_groups)))
    held_out = np.zeros((comb(groups, test_groups), groups), dtype=np.bool_)
    np.put_along_axis(held_out, chosen, True, axis=1)
    return held_out


def neighbours_held_out(held_out: BoolArray) -> tuple[BoolArray, BoolArray]:
    """For each group, whether the group before it, and the one after it, is held out; each shaped as `held_out`."""
    none = np.zeros_like(held_out[..., :1])
    return (
        np.concatenate([none, held_out[..., :-1]], axis=-1),
        np.concatenate([held_out[..., 1:], none], axis=-1),
    )
