"""Sharpe ratios' errors and odds, by formulas worked out apart."""

import json
from statistics import NormalDist

import numpy as np
import pytest
from arch.covariance.kernel import Bartlett

from archetype_dagster.backtest.statistics import (
    SharpeEstimate,
    deflated_sharpe,
    expected_maximum_sharpe,
    minimum_track_record,
    probabilistic_sharpe,
    sharpe_estimate,
    trial_variance,
)

NORMAL = NormalDist()


def estimate_of(sharpe, periods, skewness=0.0, kurtosis=3.0):
    error = np.sqrt((1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2) / (periods - 1))
    return SharpeEstimate(periods, sharpe, skewness, kurtosis, error, 2 * error, 5)


@pytest.fixture
def returns():
    return np.random.default_rng(0).gamma(2.0, 1e-3, 3000) - 1.8e-3


def test_the_estimate_is_of_the_population_moments(returns):
    found = sharpe_estimate(returns)
    centred = returns - returns.mean()
    assert found.sharpe == pytest.approx(returns.mean() / returns.std(), rel=1e-12)
    assert found.skewness == pytest.approx(np.mean(centred**3) / returns.std() ** 3, rel=1e-9)
    assert found.kurtosis == pytest.approx(np.mean(centred**4) / returns.std() ** 4, rel=1e-9)
    assert found.lags == 8


def test_the_plain_error_is_the_closed_form_and_the_robust_one_without_lags(returns):
    found = sharpe_estimate(returns, lags=0)
    closed = 1 - found.skewness * found.sharpe + (found.kurtosis - 1) / 4 * found.sharpe**2
    assert found.standard_error == pytest.approx(np.sqrt(closed / (len(returns) - 1)), rel=1e-12)
    assert found.robust_error == found.standard_error


def test_the_robust_error_is_that_of_a_maintained_library(returns):
    found = sharpe_estimate(np.cumsum(returns), lags=12)
    z = (np.cumsum(returns) - np.cumsum(returns).mean()) / np.cumsum(returns).std()
    long_run = Bartlett(z - found.sharpe / 2 * (z**2 - 1), bandwidth=12).cov.long_run
    assert found.robust_error == pytest.approx(np.sqrt(float(np.squeeze(long_run)) / (len(returns) - 1)), rel=1e-9)


def test_dependence_widens_the_robust_error_as_theory_says():
    """For a first-order series with a small Sharpe ratio the error grows by sqrt((1 + c) / (1 - c))."""
    rng = np.random.default_rng(1)
    series = rng.normal(size=40_000)
    for row in range(1, len(series)):
        series[row] += 0.5 * series[row - 1]
    found = sharpe_estimate(series, lags=60)
    assert found.robust_error / found.standard_error == pytest.approx(np.sqrt(3), rel=0.1)


def test_reversal_narrows_the_robust_error():
    noise = np.random.default_rng(2).normal(size=5001)
    found = sharpe_estimate(np.diff(noise) + 0.1)
    assert found.robust_error < 0.6 * found.standard_error


def test_a_normal_series_has_lo_s_error():
    """Lo (2002): sqrt((1 + SR^2 / 2) / T) for independent normal returns."""
    found = sharpe_estimate(np.random.default_rng(3).normal(0.5, 1.0, 200_000))
    assert found.standard_error == pytest.approx(np.sqrt((1 + 0.5**2 / 2) / 200_000), rel=0.01)


@pytest.mark.parametrize("returns", [np.full(100, 0.001), np.zeros(10), [0.3]])
def test_a_constant_return_has_no_estimate(returns):
    assert sharpe_estimate(returns) is None


def test_the_published_example_of_a_probabilistic_ratio():
    """Bailey and Lopez de Prado (2012): 24 monthly returns, annual ratio 1.59, skewness -2.448, kurtosis 10.164."""
    found = estimate_of(1.59 / np.sqrt(12), 24, -2.448, 10.164)
    assert probabilistic_sharpe(found) == pytest.approx(0.913, abs=0.001)
    assert probabilistic_sharpe(estimate_of(1.59 / np.sqrt(12), 24)) == pytest.approx(0.982, abs=0.001)


def test_the_published_example_of_a_deflated_ratio():
    """Bailey and Lopez de Prado (2014): 1,250 daily returns, annual 2.5, 100 trials of annual variance 1/2."""
    found = estimate_of(2.5 / np.sqrt(250), 1250, -3.0, 10.0)
    assert expected_maximum_sharpe(100, 0.5 / 250) == pytest.approx(0.1132, abs=1e-4)
    assert deflated_sharpe(found, trials=100, variance=0.5 / 250) == pytest.approx(0.9004, abs=1e-3)


def test_the_robust_odds_are_of_the_robust_error():
    found = estimate_of(0.05, 1000)
    assert probabilistic_sharpe(found, 0.02, robust=True) == pytest.approx(
        NORMAL.cdf(0.03 / found.robust_error), rel=1e-12
    )


def test_the_expected_maximum_is_that_of_simulated_trials():
    best = np.random.default_rng(4).normal(0, 0.3, (20_000, 50)).max(axis=1).mean()
    assert expected_maximum_sharpe(50, 0.09) == pytest.approx(best, rel=0.02)


def test_one_trial_deflates_nothing():
    found = estimate_of(0.05, 1000)
    assert expected_maximum_sharpe(1, 0.3) == 0.0
    assert deflated_sharpe(found, trials=1, variance=0.3) == probabilistic_sharpe(found)


def test_the_deflated_ratio_falls_as_trials_and_their_spread_grow():
    found = estimate_of(0.05, 5000)
    by_trials = [deflated_sharpe(found, trials=trials, variance=2e-4) for trials in (1, 2, 5, 20, 100, 10_000)]
    by_spread = [deflated_sharpe(found, trials=20, variance=variance) for variance in (0.0, 1e-5, 1e-4, 1e-3)]
    for falling in (by_trials, by_spread):
        assert (np.diff(falling) < 0).all()
    assert by_trials[0] > 0.99
    assert by_trials[-1] < 0.8


def test_a_track_record_of_the_minimum_length_is_just_convincing():
    found = estimate_of(0.05, 500, -0.5, 6.0)
    needed = minimum_track_record(found, 0.01, confidence=0.95)
    assert probabilistic_sharpe(estimate_of(0.05, needed, -0.5, 6.0), 0.01) == pytest.approx(0.95, rel=1e-9)
    assert minimum_track_record(found, 0.01, robust=True) == pytest.approx(1 + 4 * (needed - 1))


def test_no_track_record_convinces_of_a_ratio_below_the_benchmark():
    assert minimum_track_record(estimate_of(-0.01, 500)) is None
    assert minimum_track_record(estimate_of(0.02, 500), 0.02) is None


def test_a_ratio_without_an_error_has_no_odds():
    certain = SharpeEstimate(4, 1.0, 0.0, 1.0, 0.0, 0.0, 0)
    assert probabilistic_sharpe(certain) is None


def test_undefined_trials_do_not_count_in_the_spread():
    assert trial_variance([0.1, None, 0.3]) == pytest.approx(0.02)
    assert trial_variance([0.1, None]) == trial_variance([]) == 0.0


def test_the_estimate_is_ready_for_json(returns):
    assert json.loads(json.dumps(sharpe_estimate(returns).as_dict(), allow_nan=False))["periods"] == 3000


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: sharpe_estimate([]), "at least one value"),
        (lambda: sharpe_estimate([[0.1, 0.2]]), "one-dimensional"),
        (lambda: sharpe_estimate([0.1, np.nan]), "finite, got nan"),
        (lambda: sharpe_estimate([0.1, 0.2], lags=2), "got lags=2"),
        (lambda: sharpe_estimate([0.1, 0.2], lags=-1), "got lags=-1"),
        (lambda: expected_maximum_sharpe(0, 0.1), "got trials=0"),
        (lambda: expected_maximum_sharpe(3, -0.1), "got variance=-0.1"),
        (lambda: minimum_track_record(estimate_of(0.1, 10), confidence=0.5), "got confidence=0.5"),
    ],
)
def test_wrong_input_is_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()


def test_a_planted_edge_is_found_among_useless_trials():
    """The best of 30 useless strategies does not pass; the same strategies with one real edge do."""
    rng = np.random.default_rng(5)
    passed = {0.0: 0, 0.12: 0}
    for edge in passed:
        for _ in range(20):
            trials = rng.normal(0, 1, (30, 3000))
            trials[17] += edge
            estimates = [sharpe_estimate(trial, lags=0) for trial in trials]
            best = max(estimates, key=lambda estimate: estimate.sharpe)
            spread = trial_variance(estimate.sharpe for estimate in estimates if estimate is not best)
            passed[edge] += deflated_sharpe(best, trials=30, variance=spread) > 0.95
    assert passed[0.0] <= 2
    assert passed[0.12] >= 18


def test_without_an_edge_high_odds_are_as_rare_as_they_should_be():
    series = np.random.default_rng(6).standard_t(6, (800, 500))
    odds = np.array([probabilistic_sharpe(sharpe_estimate(row)) for row in series])
    assert np.mean(odds > 0.95) == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / 800))
