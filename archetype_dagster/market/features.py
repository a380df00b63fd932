"""The 45 features of a table of bars, causal and always finite; `feature_formulas` says what each one is.

Prefix invariance is bit by bit: a row is a function of its own and the previous 60 bars of its segment.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import mark_of_books
from archetype_dagster.market.feature_formulas import (
    ARRAYS,
    BOOK_LEVELS,
    FEATURE_FORMULAS,
    FEATURE_NAMES,
    RETURNED,
    TRENDED,
    WARMUP_BARS,
    Candles,
    array_levels,
    bar_quantities,
    feature_values,
    trend,
    trend_residues,
)
from archetype_dagster.market.order_books import number_column, order_books
from archetype_dagster.types import FeatureScale, IndexArray

__all__ = ["FEATURE_FORMULAS", "FEATURE_NAMES", "WARMUP_BARS", "compute_features", "feature_rows"]


def compute_features(bars: pl.DataFrame, *, scale: FeatureScale = "relative") -> pl.DataFrame:
    """The 45 features of every bar that has 60 predecessors in its segment.

    Args:
        bars: bars of one pair, oldest first, with at least five book levels. Without a `segment`
            column the timestamps must be evenly spaced; they are then one segment.
        scale: `relative` divides price levels and price differences (`wap_1`, `wap_2`,
            `wap_balance`, `buy_spread`, `sell_spread`, `sell_vwap`, `buy_vwap`) by the mid, which
            makes them comparable over years; `raw` keeps them. Everything else is the same.

    Returns:
        `timestamp` as in the bars and the columns of `FEATURE_NAMES`, Float64, all finite.
        Trends use the population standard deviation; eps is 1e-12 of the mid for prices and 1e-12
        for volume, so float residue in a constant window does not count as movement.

    Raises:
        MarketDataError: unusable values, unsorted times, or unevenly spaced bars without segments.
        ValueError: unknown scale.
    """
    if scale not in ("relative", "raw"):
        raise ValueError(f"scale must be 'relative' or 'raw', got scale={scale!r}")
    rows = feature_rows(bars)
    books = order_books(bars, levels=BOOK_LEVELS)
    candles = Candles(*(number_column(bars, name, positive=name != "volume") for name in Candles._fields))
    mid = mark_of_books(books, candles.close)
    bids, asks = (array_levels(side, mid) for side in books)
    quantities = bar_quantities(bids, asks, candles, ARRAYS)
    windows = rows - (WARMUP_BARS - 1)
    residues = zip(TRENDED, trend_residues(mid[WARMUP_BARS - 1 :]), strict=True)
    trends = {name: trend(quantities[name], residue)[windows] for name, residue in residues}
    before = {name: quantities[name][rows - 1] for name in RETURNED}
    now = {name: values[rows] for name, values in quantities.items()}
    features = feature_values(now, before, trends, mid[rows], scale=scale)
    columns = [pl.Series(name, values) for name, values in zip(FEATURE_NAMES, features, strict=True)]
    return pl.DataFrame([bars["timestamp"].gather(rows), *columns])


def feature_rows(bars: pl.DataFrame) -> IndexArray:
    """Row numbers of the bars with at least `WARMUP_BARS` predecessors in their segment, int64 (n,).

    Raises:
        MarketDataError: unsorted times, or unevenly spaced bars without a `segment` column.
    """
    if "timestamp" not in bars.columns:
        raise MarketDataError("missing column", field="timestamp")
    steps = np.diff(bars["timestamp"].to_physical().cast(pl.Int64).to_numpy())
    if (steps <= 0).any():
        raise MarketDataError("must grow from bar to bar", row=int(np.argmax(steps <= 0)) + 1, field="timestamp")
    if "segment" in bars.columns:
        breaks = np.diff(bars["segment"].to_numpy()) != 0
    elif len(steps) and (steps != steps[0]).any():
        raise MarketDataError(
            "bars are not evenly spaced and have no segment column: assign segments first",
            row=int(np.argmax(steps != steps[0])) + 1,
            field="timestamp",
        )
    else:
        breaks = np.zeros(len(steps), dtype=np.bool_)
    index = np.arange(bars.height, dtype=np.int64)
    first = np.maximum.accumulate(np.where(np.concatenate([[True], breaks])[: bars.height], index, 0))
    return np.flatnonzero(index - first >= WARMUP_BARS)
