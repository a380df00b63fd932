"""Intervals of the metrics, comparisons of paths, and their coverage in simulation."""

import json

import numpy as np
import pytest

from archetype_dagster.backtest.performance import performance
from archetype_dagster.backtest.statistics import bootstrap_intervals, compare_paths
from archetype_dagster.backtest.statistics.bootstrap import METRICS, aligned_returns
from archetype_dagster.settings import StatisticsSettings

YEAR = 52_560
QUICK = StatisticsSettings(bootstrap_samples=400, block_bars=5)


def path_of(returns):
    return 100 * np.cumprod(np.concatenate([[1.0], 1 + np.asarray(returns)]))


def intervals(path, settings=QUICK, seed=0):
    return bootstrap_intervals(path, settings=settings, periods_per_year=YEAR, seed=seed)


def compare(path, other, settings=QUICK, seed=0):
    return compare_paths(path, other, settings=settings, periods_per_year=YEAR, seed=seed)


@pytest.fixture(scope="module")
def returns():
    return np.random.default_rng(0).normal(2e-4, 1e-3, 2000)


def test_every_metric_lies_in_its_interval(returns):
    found = intervals(path_of(returns))
    measured = performance(path_of(returns), periods_per_year=YEAR).as_dict()
    assert tuple(found) == METRICS
    for name, interval in found.items():
        assert interval.estimate == measured[name]
        assert interval.low < interval.estimate < interval.high
        assert interval.defined_share == 1.0


def test_the_width_is_that_of_the_standard_error(returns):
    """For independent normal returns the mean's error is std / sqrt(T), and the volatility's std / sqrt(2 T)."""
    found = intervals(path_of(returns), StatisticsSettings(bootstrap_samples=4000, block_bars=1))
    width = 2 * 1.96
    sharpe, volatility = found["sharpe"], found["annual_volatility"]
    assert (sharpe.high - sharpe.low) / np.sqrt(YEAR) == pytest.approx(width / np.sqrt(2000), rel=0.06)
    assert (volatility.high - volatility.low) / volatility.estimate == pytest.approx(width / np.sqrt(4000), rel=0.06)


def test_more_confidence_is_a_wider_interval(returns):
    narrow, wide = (
        intervals(path_of(returns), StatisticsSettings(bootstrap_samples=400, block_bars=5, confidence=level))
        for level in (0.5, 0.99)
    )
    for name in METRICS:
        assert wide[name].low < narrow[name].low < narrow[name].high < wide[name].high


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(returns):
    automatic = StatisticsSettings(bootstrap_samples=50)
    first, again, other = (repr(intervals(path_of(returns), automatic, seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_a_constant_return_has_no_ratios_in_any_resample():
    found = intervals(path_of(np.full(250, 0.001)))
    for name in ("sharpe", "calmar", "sortino"):
        assert (found[name].low, found[name].estimate, found[name].high) == (None, None, None)
        assert found[name].defined_share == 0.0
    assert found["total_return"].low == pytest.approx(found["total_return"].high)


def test_undefined_resamples_are_counted_and_never_infinite():
    """With the one loss left out, nothing was ever lost."""
    found = intervals(path_of([0.01] * 9 + [-0.01]), StatisticsSettings(bootstrap_samples=4000, block_bars=1))
    assert found["sortino"].defined_share == pytest.approx(1 - 0.9**10, abs=0.04)
    assert all(np.isfinite([found[name].low, found[name].high]).all() for name in METRICS)


def test_a_resample_that_draws_ruin_ends_there():
    path = path_of(np.full(20, 0.01))
    path[-1] = -5.0
    found = intervals(path, StatisticsSettings(bootstrap_samples=4000, block_bars=1))
    assert (found["total_return"].low, found["total_return"].estimate) == (-1.0, -1.0)
    assert found["max_drawdown"].high == 1.0
    # 36 % of the resamples never draw the one bar of ruin.
    assert found["total_return"].high > 0.2
    assert found["max_drawdown"].low == 0.0
    assert found["calmar"].defined_share == pytest.approx(1 - 0.95**20, abs=0.03)


def test_a_path_that_outgrows_float64_is_undefined_and_not_infinite():
    path = 1e-3 * np.cumprod(np.concatenate([np.full(1015, 2.0), np.full(15, 0.5)]))
    found = intervals(path)["total_return"]
    assert 0.5 < found.defined_share < 1.0
    assert np.isfinite([found.low, found.estimate, found.high]).all()


def test_a_better_path_is_ahead_and_a_path_is_level_with_itself(returns):
    path = path_of(returns)
    ahead = compare(path_of(returns + 2e-4), path)
    assert ahead.sharpe_ahead == ahead.mean_ahead == 1.0
    assert ahead.annual_mean.low == pytest.approx(2e-4 * YEAR)
    assert ahead.annual_mean.high == pytest.approx(2e-4 * YEAR)
    level = compare(path, path)
    assert (level.sharpe.low, level.sharpe.estimate, level.sharpe.high) == (0.0, 0.0, 0.0)
    assert level.sharpe_ahead == 0.0


def test_a_comparison_changes_its_sign_with_its_sides(returns):
    other = path_of(np.random.default_rng(1).normal(1e-4, 1e-3, 2000))
    there, back = compare(path_of(returns), other), compare(other, path_of(returns))
    assert there.sharpe.estimate == -back.sharpe.estimate
    assert there.sharpe.low == pytest.approx(-back.sharpe.high)
    assert there.sharpe_ahead == pytest.approx(1 - back.sharpe_ahead)


def test_paths_of_the_same_market_are_compared_more_sharply_than_apart(returns):
    market = np.random.default_rng(2).normal(0, 2e-3, 2000)
    paired = compare(path_of(market + returns), path_of(market)).annual_mean
    apart = compare(path_of(market + returns), path_of(np.roll(market, 997))).annual_mean
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)


def test_against_no_position_the_mean_is_compared_and_the_sharpe_ratio_is_undefined(returns):
    result = compare(path_of(returns), np.full(2001, 100.0))
    assert (result.sharpe.estimate, result.sharpe_ahead, result.sharpe.defined_share) == (None, None, 0.0)
    assert result.annual_mean.estimate == pytest.approx(returns.mean() * YEAR)
    assert result.mean_ahead > 0.95
    json.dumps(result.as_dict(), allow_nan=False)


def test_a_ruined_path_may_be_shorter_and_an_unfinished_one_may_not(returns):
    path = path_of(returns)
    ruined = np.concatenate([path[:100], [-1.0]])
    np.testing.assert_array_equal(aligned_returns(path, ruined)[1, 100:], 0.0)
    assert compare(path, ruined).mean_ahead > 0.8
    with pytest.raises(ValueError, match="same bars, got lengths 100 and 2001"):
        compare(path, path[:100])


def test_a_ruined_rival_is_judged_over_all_bars_measured_and_resampled():
    """Ten bars of 20 % and then nothing left, against a path that earns 0.05 % a bar throughout."""
    survivor = np.tile([0.0015, -0.0005], 500)
    path, ruined = path_of(survivor), np.concatenate([path_of(np.full(10, 0.2)), [0.0]])
    there, back = (
        compare(*paths, StatisticsSettings(bootstrap_samples=1000, block_bars=1))
        for paths in ((path, ruined), (ruined, path))
    )
    zeroed = np.concatenate([np.full(10, 0.2), [-1.0], np.zeros(989)])
    sharpe = [returns.mean() / returns.std() * np.sqrt(YEAR) for returns in (survivor, zeroed)]
    assert there.sharpe.estimate == pytest.approx(sharpe[0] - sharpe[1])
    assert there.annual_mean.estimate == pytest.approx((survivor.mean() - zeroed.mean()) * YEAR)
    for lead in (there.sharpe, there.annual_mean):
        assert lead.low < lead.estimate < lead.high
    assert back.annual_mean.low == pytest.approx(-there.annual_mean.high)


def test_a_year_without_periods_is_refused(returns):
    with pytest.raises(ValueError, match="periods_per_year"):
        compare_paths(path_of(returns), path_of(returns), settings=QUICK, periods_per_year=0, seed=0)


def coverage(coefficient, settings, runs, length):
    """Share of simulated first-order series whose interval holds the true Sharpe ratio."""
    rng = np.random.default_rng(7)
    shocks = rng.normal(size=(length + 100, runs))
    for row in range(1, len(shocks)):
        shocks[row] += coefficient * shocks[row - 1]
    deviation, mean = 1e-3, 1e-4
    series = mean + shocks[100:] * deviation * np.sqrt(1 - coefficient**2)
    truth = mean / deviation * np.sqrt(YEAR)
    held = [
        found["sharpe"].low <= truth <= found["sharpe"].high
        for found in (intervals(path_of(column), settings, seed) for seed, column in enumerate(series.T))
    ]
    return np.mean(held)


@pytest.mark.slow
def test_intervals_hold_the_true_sharpe_ratio_at_the_stated_rate():
    runs = 250
    three_errors = 3 * np.sqrt(0.95 * 0.05 / runs)
    automatic = StatisticsSettings(bootstrap_samples=300)
    assert coverage(0.0, automatic, runs, 500) == pytest.approx(0.95, abs=three_errors)
    # Blocks of finite length catch most, not all, of the dependence.
    assert coverage(0.4, automatic, runs, 500) == pytest.approx(0.95, abs=three_errors + 0.02)
    independent = StatisticsSettings(bootstrap_samples=300, block_bars=1)
    assert coverage(0.4, independent, runs, 500) < 0.88
