"""The stationary block bootstrap: how long blocks are, and resampled returns in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from archetype_dagster.backtest.metric_kernels import mean_and_deviation
from archetype_dagster.settings import StatisticsSettings
from archetype_dagster.types import FloatArray, IndexArray

# Values resampled at once: a chunk and its temporaries stay in a core's cache.
_CHUNK: Final = 1 << 17
# Below this the estimate of the block length has more autocorrelations to look at than returns.
_MIN_RETURNS: Final = 32


def block_length(series: FloatArray, settings: StatisticsSettings) -> float:
    """Mean block length in bars, at least 1: `settings.block_bars`, or an estimate from the series.

    The estimate is that of Politis and White (2004) with the correction of Patton, Politis and White
    (2009) for the stationary bootstrap, as computed by `arch`. It is the largest over the series and
    their squares: the mean depends on how returns follow each other, volatility and drawdowns on how
    their sizes do. Series without variance, or of fewer than 32 returns, are drawn one by one.

    Args:
        series: float64 (S, T), one row a series of per-bar returns, resampled together.
        settings: the statistics section.
    """
    if settings.block_bars is not None:
        return settings.block_bars
    candidates = np.concatenate([series, series**2])
    candidates = candidates[mean_and_deviation(candidates)[1] > 0]
    if series.shape[1] < _MIN_RETURNS or not len(candidates):
        return 1.0
    # Here, as loading it takes seconds that only an estimate is worth.
    from arch.bootstrap import optimal_block_length

    return max(1.0, float(optimal_block_length(candidates.T)["stationary"].max()))


def stationary_rows(num_rows: int, length: int, *, block: float, rng: np.random.Generator) -> IndexArray:
    """Rows of a stationary bootstrap (Politis and Romano 1994), int64 (num_rows, length) in [0, 2 length).

    A block starts at a uniform bar and goes on with probability 1 - 1 / block at each further bar, so
    its length is geometric with mean `block`. An index of `length` or more has gone round the end and
    stands for the index less `length`.
    """
    opens = rng.random((num_rows, length)) * block < 1
    opens[:, 0] = True
    openings = np.flatnonzero(opens)
    shifts = rng.integers(0, length, len(openings)) - openings % length
    rows = np.repeat(shifts, np.diff(openings, append=num_rows * length)).reshape(num_rows, length)
    rows += np.arange(length)
    return np.asarray(rows, dtype=np.int64)


def resampled(series: FloatArray, *, samples: int, block: float, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Resamples of S series with the same blocks for all: chunks float64 (S, B, T) whose B sum to `samples`.

    Args:
        series: float64 (S, T), per-bar returns.
        samples: resampled paths in all.
        block: mean block length in bars, at least 1.
        rng: the stream the blocks are drawn from.
    """
    length = series.shape[1]
    # Round the end without a remainder for every index.
    wrapped = np.concatenate([series, series], axis=1)
    per_chunk = max(1, _CHUNK // length)
    for first in range(0, samples, per_chunk):
        rows = stationary_rows(min(per_chunk, samples - first), length, block=block, rng=rng)
        yield wrapped[:, rows]
