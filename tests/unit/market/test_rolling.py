"""Window moments: right, stable, and blind to everything outside the window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal

from archetype_dagster.market.rolling import RollingMoments, window_moments


@given(window=st.integers(1, 70), extra=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_moments_equal_those_of_each_window(window, extra, seed):
    values = 1e5 + np.random.default_rng(seed).standard_normal(window + extra)
    windows = sliding_window_view(values, window)
    mean, std = window_moments(values, window)
    assert_allclose(mean, windows.mean(axis=1), rtol=1e-14)
    assert_allclose(std, windows.std(axis=1), rtol=1e-8, atol=1e-10)


def test_a_constant_window_has_no_deviation_at_all():
    values = np.full(200, 0.1)
    values[:70] = 1e12
    mean, std = window_moments(values, 60)
    assert_array_equal(mean[70:], 0.1)
    assert_array_equal(std[70:], 0.0)


def test_a_window_alone_gives_the_same_bits_as_inside_a_long_series():
    values = np.random.default_rng(3).lognormal(size=500)
    whole = window_moments(values, 60)
    for start in (0, 7, 440):
        alone = window_moments(values[start : start + 60], 60)
        assert (alone.mean[0], alone.std[0]) == (whole.mean[start], whole.std[start])


@given(window=st.integers(1, 70), extra=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_value_by_value_the_moments_are_the_same_bits(window, extra, seed):
    values = np.random.default_rng(seed).lognormal(size=(3, window + extra))
    rolling = RollingMoments(3, window)
    found = [rolling.push(column) for column in values.T][window - 1 :]
    whole = window_moments(values, window)
    assert_array_equal(np.stack([one.mean for one in found], axis=1), whole.mean)
    assert_array_equal(np.stack([one.std for one in found], axis=1), whole.std)
    assert_array_equal(rolling.values(), values[:, extra:])


@pytest.mark.parametrize(("series", "window"), [(0, 5), (5, 0)])
def test_no_series_and_no_window_are_refused(series, window):
    with pytest.raises(ValueError, match=f"got series={series} and window={window}"):
        RollingMoments(series, window)


@pytest.mark.parametrize("window", [0, 6])
def test_a_window_that_does_not_fit_is_refused(window):
    with pytest.raises(ValueError, match=f"got window={window}"):
        window_moments(np.zeros(5), window)
