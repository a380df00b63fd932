"""Small hand-made markets for the backtest's tests."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.replay import PricedBars

START = np.datetime64("2024-01-01T00:10", "us")


def bar_ends(count: int) -> np.ndarray:
    return START + np.arange(count) * np.timedelta64(10, "m")


@pytest.fixture
def priced() -> Callable[..., PricedBars]:
    """Bars with given marks, a commission rate and a loss of `half_spread` per unit traded."""

    def make(mark, *, rate=0.0, half_spread=0.0, max_position=1.0, segment=None) -> PricedBars:
        mark = np.asarray(mark, dtype=np.float64)
        units = max_position * np.abs(np.arange(3)[:, None] - np.arange(3))
        return PricedBars(
            timestamps=bar_ends(len(mark)),
            mark=mark,
            slippage=np.broadcast_to(half_spread * units, (len(mark), 3, 3)).copy(),
            commission=rate * units * mark[:, None, None],
            segment=np.zeros(len(mark), dtype=np.int32) if segment is None else np.asarray(segment, dtype=np.int32),
            max_position=max_position,
            commission_rate=rate,
        )

    return make


@pytest.fixture
def book_bars() -> Callable[..., pl.DataFrame]:
    """Bars whose book has `levels` levels of `size` units, one `tick` apart around the given mid prices."""

    def make(mid, *, size=1e6, tick=0.01, levels=5, segment=0) -> pl.DataFrame:
        mid = np.asarray(mid, dtype=np.float64)
        frame = pl.DataFrame(
            {
                "timestamp": pl.Series(bar_ends(len(mid))).dt.replace_time_zone("UTC"),
                "open": mid,
                "high": mid + tick,
                "low": mid - tick,
                "close": mid,
                "volume": np.full(len(mid), 100.0),
                "taker_buy_volume": pl.Series([None] * len(mid), dtype=pl.Float64),
            }
        )
        for level in range(1, levels + 1):
            distance = (level - 0.5) * tick
            frame = frame.with_columns(
                pl.Series(f"bid{level}_price", mid - distance),
                pl.Series(f"bid{level}_size", np.full(len(mid), float(size))),
                pl.Series(f"ask{level}_price", mid + distance),
                pl.Series(f"ask{level}_size", np.full(len(mid), float(size))),
            )
        return frame.with_columns(
            pl.lit("observed").alias("book_source"), pl.lit(segment, dtype=pl.Int32).alias("segment")
        )

    return make
