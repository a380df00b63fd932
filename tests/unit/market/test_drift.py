from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from archetype_dagster.market.drift import feature_drift, same_use_odds, stability_index


def test_a_shifted_feature_stands_first_and_the_same_one_is_still():
    rng = np.random.default_rng(0)
    training = rng.normal(size=(4000, 2))
    recent = rng.normal(size=(1000, 2)) + np.array([0.0, 1.0])
    drift = feature_drift(training, recent, ["still", "shifted"])
    assert drift["feature"].to_list() == ["shifted", "still"]
    assert drift["psi"][0] > 0.25 > 0.05 > drift["psi"][1]
    for row in drift.iter_rows(named=True):
        column = ["still", "shifted"].index(row["feature"])
        assert row["ks"] == pytest.approx(ks_2samp(training[:, column], recent[:, column]).statistic)


def test_a_constant_feature_has_not_drifted_until_it_moves():
    constant = np.ones((50, 1))
    assert feature_drift(constant, constant[:20], ["c"])["psi"].item() < 0.05
    assert feature_drift(constant, constant[:20] - 2, ["c"])["psi"].item() > 1.0


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=12))
def test_the_index_is_never_negative_and_no_count_makes_it_infinite(counts: list[tuple[int, int]]):
    old, new = (np.array(column, dtype=np.int64) for column in zip(*counts, strict=True))
    assert 0.0 <= stability_index(old, new) < np.inf
    assert stability_index(old, old) == pytest.approx(0.0)
    assert 0.0 <= same_use_odds(old, new) <= 1.0


def test_another_use_of_the_archetypes_is_unlikely_and_the_same_is_not():
    assert same_use_odds(np.array([300, 300, 0]), np.array([30, 31, 0])) > 0.9
    assert same_use_odds(np.array([300, 300, 0]), np.array([60, 1, 0])) < 1e-6
    assert same_use_odds(np.array([5, 0]), np.array([7, 0])) == 1.0


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(ValueError, match=r"recent must be \(rows >= 1, 1\), got shape \(0, 1\)"):
        feature_drift(np.ones((2, 1)), np.ones((0, 1)), ["a"])
    with pytest.raises(ValueError, match="training must be finite"):
        feature_drift(np.array([[np.nan]]), np.ones((1, 1)), ["a"])
    with pytest.raises(ValueError, match="counts must be vectors of one length"):
        stability_index(np.ones(2, dtype=np.int64), np.ones(3, dtype=np.int64))
