"""Which bars are held out, and which training bars are dropped around them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.backtest.statistics import combinatorial_purged_splits
from archetype_dagster.errors import SettingsError


def test_a_small_case_by_hand():
    """12 bars in 4 groups of 3, two held out, one bar purged: group 0 keeps bars 0 and 1 where group 1 is held out."""
    splits = list(combinatorial_purged_splits(12, 4, 2, 1, 0))
    assert [split.test_groups for split in splits] == list(combinations(range(4), 2))
    middle = splits[3]
    assert middle.test.tolist() == [3, 4, 5, 6, 7, 8]
    assert middle.train.tolist() == [0, 1, 10, 11]


def test_the_embargo_adds_to_what_is_dropped_after_a_held_out_stretch():
    (split, *_) = combinatorial_purged_splits(20, 2, 1, 1, 3)
    assert split.test.tolist() == list(range(10))
    assert split.train.tolist() == list(range(14, 20))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.integers(0, 6), st.integers(0, 5), st.integers(0, 40), st.data())
def test_no_training_bar_is_near_a_held_out_one(groups, purge, embargo, extra, data):
    bars = groups * (2 * purge + embargo + 1) + extra
    test_groups = data.draw(st.integers(1, groups - 1))
    held_out = np.zeros(bars, dtype=int)
    for split in combinatorial_purged_splits(bars, groups, test_groups, purge, embargo):
        held_out[split.test] += 1
        ahead = split.test[None] - split.train[:, None]
        assert not ((ahead >= 0) & (ahead <= purge)).any()
        assert not ((ahead <= 0) & (-ahead <= purge + embargo)).any()
        dropped = np.setdiff1d(np.arange(bars), np.concatenate([split.train, split.test]))
        near = (dropped[:, None] - split.test[None] >= -purge) & (dropped[:, None] - split.test <= purge + embargo)
        assert near.any(axis=1).all()
    assert len(set(held_out)) == 1


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((100, 1, 1, 0, 0), "got groups=1"),
        ((100, 4, 0, 0, 0), "got test_groups=0"),
        ((100, 4, 4, 0, 0), "got test_groups=4"),
        ((100, 4, 2, -1, 0), "got purge_bars=-1"),
        ((100, 4, 2, 0, -1), "got embargo_bars=-1"),
        ((100, 4, 2, 10, 5), "longer than the 25 bars that are dropped from them, got 25 bars each"),
    ],
)
def test_splits_that_cannot_be_made_are_refused(arguments, rule):
    with pytest.raises(ValueError, match=rule):
        list(combinatorial_purged_splits(*arguments))


def test_a_split_too_short_for_the_groups_is_a_fault_of_the_settings_that_names_them():
    with pytest.raises(SettingsError, match=r"statistics\.overfitting_groups.*statistics\.purge_bars"):
        list(combinatorial_purged_splits(102, 16, 8, 72, 60))
