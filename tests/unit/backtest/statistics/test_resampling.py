"""Blocks of the stationary bootstrap and the estimate of their length."""

import numpy as np
import pytest

from archetype_dagster.backtest.statistics.resampling import block_length, resampled, stationary_rows
from archetype_dagster.settings import StatisticsSettings

AUTOMATIC = StatisticsSettings()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("block", [1.0, 4.0, 50.0])
def test_blocks_are_geometric_with_the_mean_asked_for(rng, block):
    length = 1000
    rows = stationary_rows(400, length, block=block, rng=rng) % length
    continued = np.mean((rows[:, 1:] - rows[:, :-1]) % length == 1)
    # A new block goes on by chance from the bar before in one of `length` cases.
    expected = 1 - 1 / block + 1 / block / length
    assert continued == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / rows.size) + 1e-4)


def test_every_bar_is_drawn_equally_often(rng):
    length = 50
    counts = np.bincount(stationary_rows(20_000, length, block=5, rng=rng).ravel() % length, minlength=length)
    # Draws of one block depend on each other: five times the variance of independent ones, and a margin.
    assert np.abs(counts / 20_000 - 1).max() < 5 * np.sqrt(2 * 5 / 20_000)


def test_rows_stay_in_range_and_one_block_goes_round(rng):
    rows = stationary_rows(7, 30, block=1e12, rng=rng)
    assert rows.min() >= 0
    assert rows.max() < 60
    assert (np.diff(rows, axis=1) == 1).all()


def test_series_are_resampled_together_and_in_full(rng):
    series = np.stack([np.arange(700.0), -np.arange(700.0)])
    chunks = list(resampled(series, samples=500, block=3, rng=rng))
    assert len(chunks) > 1
    whole = np.concatenate(chunks, axis=1)
    assert whole.shape == (2, 500, 700)
    np.testing.assert_array_equal(whole[0], -whole[1])


def autoregressive(rng, coefficient, length):
    noise = rng.normal(size=length)
    for row in range(1, length):
        noise[row] += coefficient * noise[row - 1]
    return noise


def test_the_mean_varies_as_the_closed_form_of_politis_and_romano(rng):
    """Variance of the resampled mean: circular autocovariances, weighted by the odds of staying in a block."""
    length, block = 200, 6.0
    series = autoregressive(rng, 0.7, length)
    centred = series - series.mean()
    lags = np.arange(1, length)
    covariances = np.array([centred @ np.roll(centred, lag) for lag in lags]) / length
    weights = (1 - lags / length) * (1 - 1 / block) ** lags
    expected = (series.var() + 2 * weights @ covariances) / length
    chunks = resampled(series[None], samples=20_000, block=block, rng=rng)
    means = np.concatenate([chunk[0].mean(axis=1) for chunk in chunks])
    assert means.var() == pytest.approx(expected, rel=4 * np.sqrt(2 / 20_000))


def test_dependent_returns_ask_for_longer_blocks(rng):
    independent = block_length(rng.normal(size=(1, 4000)), AUTOMATIC)
    dependent = block_length(autoregressive(rng, 0.8, 4000)[None], AUTOMATIC)
    assert dependent > 3 * independent
    assert dependent > 15


def test_clustered_volatility_asks_for_longer_blocks(rng):
    volatility = np.exp(autoregressive(rng, 0.95, 4000) / 3)
    assert block_length((rng.normal(size=4000) * volatility)[None], AUTOMATIC) > 15


def test_the_longest_block_over_the_series_is_taken(rng):
    pair = np.stack([rng.normal(size=4000), autoregressive(rng, 0.8, 4000)])
    assert block_length(pair, AUTOMATIC) == max(block_length(row[None], AUTOMATIC) for row in pair)


def test_a_set_length_is_used_as_it_is(rng):
    assert block_length(rng.normal(size=(1, 100)), StatisticsSettings(block_bars=12.5)) == 12.5


@pytest.mark.parametrize("series", [np.full((1, 500), 0.001), np.zeros((2, 500)), np.linspace(0, 1, 20)[None]])
def test_series_that_say_nothing_of_dependence_are_drawn_one_by_one(series):
    assert block_length(series, AUTOMATIC) == 1.0
