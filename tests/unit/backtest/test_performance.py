"""The six metrics on hand-checkable paths."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.backtest.performance import bars_per_year, drawdowns, mean_performance, performance
from archetype_dagster.errors import MarketDataError

RATIOS = ("sharpe", "calmar", "sortino")


def path_of(returns, start=100.0):
    return start * np.cumprod(np.concatenate([[1.0], 1 + np.asarray(returns)]))


def test_metrics_equal_their_formulas():
    returns = np.array([0.02, -0.01, 0.03, -0.04])
    result = performance(path_of(returns), periods_per_year=52_560)
    assert result.total_return == pytest.approx(1.02 * 0.99 * 1.03 * 0.96 - 1, rel=1e-12)
    assert result.annual_volatility == pytest.approx(returns.std() * np.sqrt(52_560), rel=1e-12)
    assert result.max_drawdown == pytest.approx(0.04, rel=1e-12)
    assert result.sharpe == pytest.approx(0.0 / 1, abs=1e-9)
    downside = np.sqrt((0.01**2 + 0.04**2) / 4)
    skewed = performance(path_of(returns + 0.005), periods_per_year=52_560)
    assert skewed.sharpe == pytest.approx(0.005 / returns.std() * np.sqrt(52_560), rel=1e-9)
    assert skewed.calmar == pytest.approx(0.005 * 52_560 / skewed.max_drawdown, rel=1e-9)
    assert performance(path_of(returns)).sortino == pytest.approx(0.0 / downside, abs=1e-9)
    skewed_downside = np.sqrt((0.005**2 + 0.035**2) / 4)
    assert skewed.sortino == pytest.approx(0.005 / skewed_downside * np.sqrt(52_560), rel=1e-9)


@pytest.mark.parametrize(
    ("path", "drawdown"),
    [
        (path_of([-0.10, 0.05]), 0.10),
        ([1.0, 2.0, 4.0, 3.0], 0.25),
        (path_of([-0.50, 0.10]), 0.50),
        ([1.0, 2.0, 3.0], 0.0),
    ],
)
def test_drawdown_peaks_start_at_the_initial_capital(path, drawdown):
    assert performance(path).max_drawdown == pytest.approx(drawdown, abs=1e-12)
    assert drawdowns(np.asarray(path)).max() == pytest.approx(drawdown, abs=1e-12)


@pytest.mark.parametrize("constant", [0.001, 0.0, 0.1, 1e-7])
def test_a_constant_return_has_no_sharpe_ratio(constant):
    result = performance(path_of(np.full(250, constant)))
    assert [getattr(result, ratio) for ratio in RATIOS] == [None, None, None]
    assert result.annual_volatility == 0.0
    assert result.max_drawdown == 0.0


def test_a_constant_loss_keeps_the_ratios_whose_denominators_exist():
    result = performance(path_of(np.full(250, -0.001)))
    assert result.sharpe is None
    assert result.calmar == pytest.approx(-0.001 * 52_560 / result.max_drawdown)
    assert result.sortino == pytest.approx(-np.sqrt(52_560))


def test_a_small_but_real_deviation_is_not_taken_for_residue():
    returns = np.zeros(35_000)
    returns[100], returns[200] = 1e-5, -1e-6
    assert performance(path_of(returns)).sharpe is not None


def test_sums_are_kept_in_float64():
    path = np.float64(1e6) + 0.02 * np.arange(52_561)
    assert performance(path).total_return == pytest.approx(1_051.2 / 1e6, rel=1e-9)


@pytest.mark.parametrize("path", [[100.0, 50.0, 0.0, 500.0], [100.0, 50.0, -20.0, 500.0]])
def test_ruin_ends_the_run(path):
    result = performance(path)
    assert (result.total_return, result.max_drawdown, result.ruined) == (-1.0, 1.0, True)
    assert result.calmar == pytest.approx(-0.75 * 52_560)


def test_a_run_that_survives_is_not_flagged():
    assert not performance([100.0, 50.0, 0.01]).ruined


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=60), st.floats(1, 1e6))
def test_calmar_is_sharpe_times_volatility_over_drawdown(returns, start):
    result = performance(path_of(returns, start), periods_per_year=52_560)
    if result.sharpe is not None and result.calmar is not None:
        assert result.calmar == result.sharpe * result.annual_volatility / result.max_drawdown
    assert all(np.isfinite(value) for value in result.as_dict().values() if value is not None)


@given(st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=40), st.floats(1e-3, 1e6))
def test_metrics_do_not_depend_on_the_currency(returns, scale):
    path = path_of(returns)
    one, other = performance(path), performance(path * scale)
    assert other.total_return == pytest.approx(one.total_return, abs=1e-12)
    assert other.max_drawdown == pytest.approx(one.max_drawdown, abs=1e-12)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ([1.0], "at least two"),
        ([[1.0, 2.0]], "one-dimensional"),
        ([1.0, np.nan], "finite, got nan at position 1"),
        ([1.0, np.inf], "finite"),
        ([0.0, 1.0], "start above zero"),
        ([-1.0, 1.0], "start above zero"),
    ],
)
def test_a_path_without_metrics_is_refused(path, rule):
    with pytest.raises(ValueError, match=rule):
        performance(path)


@pytest.mark.parametrize("periods", [0, -1, np.nan, np.inf])
def test_a_year_without_periods_is_refused(periods):
    with pytest.raises(ValueError, match="periods_per_year"):
        performance([1.0, 2.0], periods_per_year=periods)


def times(*minutes):
    return np.datetime64("2024-01-01T00:00", "us") + np.array([int(60e6 * m) for m in minutes]).astype(
        "timedelta64[us]"
    )


@pytest.mark.parametrize(("minutes", "expected"), [(10, 52_560), (15, 35_040), (5, 105_120)])
def test_a_year_is_counted_in_the_bars_own_length(minutes, expected):
    assert bars_per_year(times(0, minutes, 2 * minutes, 7 * minutes)) == expected


@pytest.mark.parametrize("minutes", [(0, 10, 30.25), (0, 10, 25), (0, 10, 10), (0,)])
def test_irregular_bars_are_not_annualised(minutes):
    with pytest.raises(MarketDataError):
        bars_per_year(times(*minutes))


def test_the_mean_row_keeps_the_identity_and_undefined_ratios():
    runs = [performance(path_of(returns)) for returns in ([0.1, -0.2, 0.3], [0.05, -0.1, 0.02])]
    row = mean_performance(runs)
    assert row.total_return == pytest.approx(np.mean([run.total_return for run in runs]))
    assert row.calmar == row.sharpe * row.annual_volatility / row.max_drawdown
    assert mean_performance([*runs, performance([1.0, 1.0])]).sharpe is None
    with pytest.raises(ValueError, match="at least one run"):
        mean_performance([])


def test_metrics_are_ready_for_json():
    assert json.loads(json.dumps(performance([1.0, 1.0]).as_dict(), allow_nan=False))["sharpe"] is None
