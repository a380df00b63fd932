from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.baselines.chunks import cut_chunks, preference_weights, rank_labels, trailing_context
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset

Split = Callable[..., MarketDataset]


def exponential(split: Split, percent: np.ndarray, *, delay: int = 0) -> MarketDataset:
    """A market whose log mark moves by `percent` a bar, in one segment."""
    dataset = split(segments=(len(percent),), delay=delay)
    return replace(dataset, mark=100 * np.exp(np.cumsum(percent) / 100))


def test_a_steady_trend_has_its_rate_as_slope_and_no_volatility(learnable_split: Split) -> None:
    chunks = cut_chunks(exponential(learnable_split, np.full(21, 0.3)), 5)
    np.testing.assert_array_equal(chunks.rows, np.arange(20).reshape(4, 5))
    np.testing.assert_allclose(chunks.slopes, 0.3)
    np.testing.assert_allclose(chunks.returns, 1.5)
    np.testing.assert_allclose(chunks.volatilities, 0.0, atol=1e-9)


def test_slope_is_the_least_squares_line_and_volatility_the_population_deviation(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(40,))
    chunks = cut_chunks(dataset, 12)
    for rows, slope, volatility in zip(chunks.rows, chunks.slopes, chunks.volatilities, strict=True):
        logs = 100 * np.log(dataset.mark[rows[0] : rows[-1] + 2])
        assert slope == pytest.approx(np.polyfit(np.arange(13), logs, 1)[0])
        assert volatility == pytest.approx(np.diff(logs).std())


def test_chunks_keep_to_segments_and_to_rows_whose_reward_is_known(learnable_split: Split) -> None:
    chunks = cut_chunks(learnable_split(segments=(11, 6, 13), delay=1), 5)
    np.testing.assert_array_equal(chunks.rows[:, 0], [0, 17, 22])
    assert len(cut_chunks(learnable_split(segments=(11, 6, 13)), 5)) == 5


def test_too_few_chunks_are_an_error_that_counts_them(learnable_split: Split) -> None:
    with pytest.raises(MarketDataError, match="at least 5 chunks of 30 bars without a gap, got 3 from 110 rows"):
        cut_chunks(learnable_split(segments=(100, 10)), 30, at_least=5)


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=30), st.integers(1, 5))
def test_labels_share_the_chunks_equally_and_follow_the_values(values: list[float], count: int) -> None:
    labels = rank_labels(np.array(values), count)
    sizes = np.bincount(labels, minlength=count)
    assert len(sizes) == count
    assert sizes.max() - sizes.min() <= 1
    ordered = labels[np.argsort(values, kind="stable")]
    assert (np.diff(ordered) >= 0).all()


def test_labels_of_known_slopes() -> None:
    slopes = np.array([0.2, -0.5, 0.9, 0.0, -0.1, 0.0])
    np.testing.assert_array_equal(rank_labels(slopes, 3), [2, 0, 2, 1, 0, 1])


def test_a_preference_weighs_chunks_by_their_standardised_return() -> None:
    returns = np.array([-1.0, 0.0, 1.0])
    expected = np.exp(2 * returns / returns.std())
    np.testing.assert_allclose(preference_weights(returns, 2.0), expected / expected.sum())
    np.testing.assert_allclose(preference_weights(returns, -2.0), expected[::-1] / expected.sum())
    np.testing.assert_allclose(preference_weights(np.ones(4), 2.0), 0.25)


def test_a_crash_does_not_outweigh_all_other_chunks() -> None:
    weights = preference_weights(np.append(np.random.default_rng(0).normal(size=200), -40.0), -1.0)
    assert weights[-1] == weights.max()
    assert weights[-1] < np.exp(2.0) * weights[:-1].mean() * 1.1


def test_trailing_context_reads_the_bars_before_it_in_its_segment(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(20, 9))
    context = trailing_context(dataset, 6)
    for row, first in ((0, 0), (1, 0), (3, 0), (12, 0), (19, 0), (20, 20), (21, 20), (28, 20)):
        logs = 100 * np.log(dataset.mark[max(first, row - 5) : row + 1])
        expected = (np.polyfit(np.arange(len(logs)), logs, 1)[0], np.diff(logs).std()) if len(logs) > 1 else (0, 0)
        np.testing.assert_allclose(context[row], expected, atol=1e-9)


def test_trailing_context_of_a_row_is_the_same_bits_whatever_follows(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(20, 30))
    whole = trailing_context(dataset, 8)
    for last in (1, 19, 21, 40):
        np.testing.assert_array_equal(trailing_context(dataset.rows(slice(0, last)), 8), whole[:last])
