"""Chunks of the market with their trend and volatility, in hindsight; and the two as known at each bar.

What is computed over a whole chunk labels training and validation data and is never an input of a policy;
`trailing_context` is the causal counterpart that may be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.types import FloatArray, IndexArray

_SCORE_BOUND: Final = 2.0


@dataclass(frozen=True)
class Chunks:
    """C stretches of bars, one after the other, none across a gap.

    Attributes:
        rows: int64 (C, bars), the dataset rows of each.
        returns: float64 (C,), log return of the mark over the chunk, percent.
        slopes: float64 (C,), least-squares slope of the log mark, percent per bar.
        volatilities: float64 (C,), population standard deviation of one-bar log returns, percent.
    """

    rows: IndexArray
    returns: FloatArray
    slopes: FloatArray
    volatilities: FloatArray

    def __len__(self) -> int:
        return len(self.rows)


def cut_chunks(dataset: MarketDataset, bars: int, *, at_least: int = 1) -> Chunks:
    """Cut each segment into consecutive chunks of `bars` rows whose rewards are all known; a rest is left out.

    Args:
        dataset: rows with features.
        bars: bars per chunk, at least 2.
        at_least: chunks that the caller needs.

    Raises:
        MarketDataError: fewer chunks than needed.
    """
    cut = replace(dataset, horizon_bars=bars)
    starts = cut.horizon_starts(stride=bars)
    if len(starts) < at_least:
        raise MarketDataError(
            f"{dataset.pair}: the split must hold at least {at_least} chunks of {bars} bars without a gap, "
            f"got {len(starts)} from {len(dataset)} rows",
            field="timestamp",
        )
    logs = 100.0 * np.log(cut.horizons(starts).mark)
    newest_first = logs[:, ::-1]
    return Chunks(
        rows=starts[:, np.newaxis] + np.arange(bars),
        returns=logs[:, -1] - logs[:, 0],
        slopes=_slopes(newest_first, np.full(len(starts), bars + 1)),
        volatilities=np.diff(logs, axis=1).std(axis=1),
    )


def rank_labels(values: FloatArray, count: int) -> IndexArray:
    """Label each value by the quantile it lies in: 0 for the lowest 1 / count of them, count - 1 for the highest.

    Equal shares by rank, so that no label stays empty; of equal values the earlier one ranks lower.
    Returns int64 (C,).
    """
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    labels: IndexArray = ranks * count // len(values)
    return labels


def preference_weights(returns: FloatArray, preference: float) -> FloatArray:
    """Boltzmann weights of chunks, proportional to exp(preference z) and summing to 1.

    z are the standardised returns, bounded at two deviations: unbounded, one crash would be the whole training set.
    """
    spread = returns.std()
    scores = (returns - returns.mean()) / spread if spread > 0 else np.zeros_like(returns)
    weights = np.exp(preference * np.clip(scores, -_SCORE_BOUND, _SCORE_BOUND))
    return np.asarray(weights / weights.sum())


def trailing_context(dataset: MarketDataset, bars: int) -> FloatArray:
    """Trend and volatility of the last `bars` rows of the segment up to each row.

    Least-squares slope of the log mark, percent per bar, and population standard deviation of its one-bar
    returns, percent. Early rows of a segment use the rows there are; a first row has neither and gets zeros.

    Args:
        dataset: T rows.
        bars: rows of the window, at least 2.

    Returns:
        float64 (T, 2); row t depends on rows t - bars + 1 .. t of its own segment alone.
    """
    rows = np.arange(len(dataset))
    first = np.searchsorted(dataset.segment, dataset.segment, side="left")
    count = np.minimum(rows - first + 1, bars)
    steps = np.arange(bars)
    logs = 100.0 * np.log(dataset.mark)[np.maximum(rows[:, np.newaxis] - steps, first[:, np.newaxis])]
    # Where the window reaches before the segment its first row is repeated: those returns are zero and not counted.
    returns, moves = logs[:, :-1] - logs[:, 1:], np.maximum(count - 1, 1)
    mean = returns.sum(axis=1) / moves
    counted = steps[:-1] < (count - 1)[:, np.newaxis]
    squares = np.where(counted, returns - mean[:, np.newaxis], 0.0) ** 2
    return np.stack([_slopes(logs, count), np.sqrt(squares.sum(axis=1) / moves)], axis=1)


def _slopes(newest_first: FloatArray, count: IndexArray) -> FloatArray:
    """Least-squares slope over time of the `count` newest of each row's values (B, n); zero for a single value."""
    steps = np.arange(newest_first.shape[1])
    inside = steps < count[:, np.newaxis]
    ages = np.where(inside, (count[:, np.newaxis] - 1) / 2 - steps, 0.0)
    # Relative to the newest value, so that the price level does not cost digits.
    products = ages * (newest_first - newest_first[:, :1])
    return np.asarray(products.sum(axis=1) / np.maximum((ages**2).sum(axis=1), 1.0 / 4))
