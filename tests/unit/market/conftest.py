"""Small bars frames for the tests of costs and features."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

Levels = Sequence[tuple[float | None, float | None]]


@pytest.fixture(scope="session")
def random_bars() -> Callable[..., pl.DataFrame]:
    """A seeded random walk in the bars schema; `gap_at` skips one bar there and starts a new segment."""

    def build(rows: int = 200, *, seed: int = 0, levels: int = 5, gap_at: int | None = None) -> pl.DataFrame:
        rng = np.random.default_rng(seed)
        close = 100.0 * np.exp(np.cumsum(0.002 * rng.standard_normal(rows)))
        opening = np.concatenate([[100.0], close[:-1]])
        reach = 0.1 * rng.random((2, rows))
        step = np.arange(rows) + (0 if gap_at is None else np.arange(rows) >= gap_at)
        start = datetime(2024, 1, 1, tzinfo=UTC)
        columns: dict[str, object] = {
            "timestamp": [start + timedelta(minutes=10 * int(k)) for k in step],
            "open": opening,
            "high": np.maximum(opening, close) + reach[0],
            "low": np.minimum(opening, close) - reach[1],
            "close": close,
            "volume": rng.gamma(2.0, 50.0, rows),
            "segment": np.zeros(rows) if gap_at is None else (np.arange(rows) >= gap_at).astype(float),
        }
        for side, sign in (("bid", -1), ("ask", 1)):
            distance = 0.01 + np.cumsum(0.01 + 0.02 * rng.random((levels, rows)), axis=0)
            for level in range(levels):
                columns[f"{side}{level + 1}_price"] = close + sign * distance[level]
                columns[f"{side}{level + 1}_size"] = rng.gamma(2.0, 1.0, rows)
        return pl.DataFrame(columns).with_columns(
            pl.col("timestamp").cast(pl.Datetime("us", "UTC")), pl.col("segment").cast(pl.Int32)
        )

    return build


@pytest.fixture(scope="session")
def one_book() -> Callable[..., pl.DataFrame]:
    """One bar with the given (price, size) levels, best first."""

    def build(bids: Levels, asks: Levels, *, close: float = 100.0) -> pl.DataFrame:
        columns: dict[str, pl.Series] = {"close": pl.Series([close])}
        for side, ladder in (("bid", bids), ("ask", asks)):
            for level, (price, size) in enumerate(ladder, start=1):
                columns[f"{side}{level}_price"] = pl.Series([price], dtype=pl.Float64)
                columns[f"{side}{level}_size"] = pl.Series([size], dtype=pl.Float64)
        return pl.DataFrame(columns)

    return build
