"""The batched metrics: against one path at a time, against a maintained library, and after ruin."""

import empyrical
import numpy as np
import pytest

from archetype_dagster.backtest.metric_kernels import MetricArrays, metric_arrays
from archetype_dagster.backtest.performance import performance

YEAR = 52_560
NAMES = tuple(MetricArrays.__dataclass_fields__)


@pytest.fixture(scope="module")
def returns():
    """1,000 series of 250 returns: fat tails, volatility and drift of their own each."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(1e-4, 2e-2, (1000, 1))
    return np.clip(rng.standard_t(4, (1000, 250)) * scale + rng.normal(0, 0.1, (1000, 1)) * scale, -0.5, 0.5)


@pytest.fixture(scope="module")
def batched(returns):
    return metric_arrays(returns, np.cumprod(1 + returns, axis=1), start=1.0, periods_per_year=YEAR)


def test_many_paths_at_once_are_each_path_alone(returns, batched):
    alone = [
        performance(np.concatenate([[1.0], np.cumprod(1 + row)]), periods_per_year=YEAR).as_dict() for row in returns
    ]
    for name in NAMES:
        np.testing.assert_allclose(getattr(batched, name), [row[name] for row in alone], rtol=1e-8, err_msg=name)


def test_the_metrics_are_those_of_a_maintained_library_where_conventions_agree(returns, batched):
    series = returns.T
    bars = len(series)
    sample_deviation = np.sqrt(bars / (bars - 1))
    theirs = {
        "total_return": empyrical.cum_returns_final(series),
        "max_drawdown": -empyrical.max_drawdown(series),
        "sortino": empyrical.sortino_ratio(series, annualization=YEAR),
        # Its deviation is the sample's (ddof = 1), ours the population's.
        "annual_volatility": empyrical.annual_volatility(series, annualization=YEAR) / sample_deviation,
        "sharpe": empyrical.sharpe_ratio(series, annualization=YEAR) * sample_deviation,
    }
    for name, values in theirs.items():
        np.testing.assert_allclose(getattr(batched, name), values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_calmar_ratio_is_of_the_mean_and_not_of_compound_growth(returns, batched):
    np.testing.assert_allclose(batched.calmar, returns.mean(axis=1) * YEAR / batched.max_drawdown, rtol=1e-9)
    compound = empyrical.calmar_ratio(returns[0], annualization=YEAR)
    growth = (1 + batched.total_return[0]) ** (YEAR / 250) - 1
    assert compound == pytest.approx(growth / batched.max_drawdown[0])
    assert batched.calmar[0] != pytest.approx(compound, rel=1e-3)


def test_returns_after_ruin_do_not_count():
    returns = np.array([[0.1, -1.0, 0.0, 0.0], [0.1, -0.2, 0.1, 0.3]])
    alive = np.array([[True, True, False, False], [True, True, True, True]])
    metrics = metric_arrays(returns, np.cumprod(1 + returns, axis=1), start=1.0, periods_per_year=YEAR, alive=alive)
    for row, path in enumerate(([1.0, 1.1, 0.0], np.concatenate([[1.0], np.cumprod(1 + returns[1])]))):
        expected = performance(path, periods_per_year=YEAR).as_dict()
        for name in NAMES:
            assert getattr(metrics, name)[row] == pytest.approx(expected[name], rel=1e-12), name


def test_undefined_metrics_are_nan_and_never_infinite():
    returns = np.array([[0.001] * 50, [0.0] * 50, [-0.001] * 50])
    metrics = metric_arrays(returns, np.cumprod(1 + returns, axis=1), start=1.0, periods_per_year=YEAR)
    assert np.isnan(metrics.sharpe).all()
    assert np.isnan(metrics.calmar).tolist() == [True, True, False]
    assert np.isnan(metrics.sortino).tolist() == [True, True, False]
    assert (metrics.annual_volatility == 0).all()
