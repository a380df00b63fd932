"""Small engines on hand-made books."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BacktestEngine, BaseStrategy, spot_instrument, swap_instrument
from archetype_dagster.settings import EngineSettings, ExecutionSettings

SPOT = spot_instrument("BTC", "USDT")
SWAP = swap_instrument("BTC", "USDT")


class Scripted(BaseStrategy):
    """Gives the instructions written for each bar and remembers what it was told."""

    def __init__(self, script=None):
        self.script, self.fills, self.contexts = script or {}, [], []

    def on_bar(self, bar, ctx):
        self.contexts.append(ctx)
        given = self.script.get(ctx.bar_number, [])
        return given(ctx) if callable(given) else given

    def on_fill(self, fill, ctx):
        self.fills.append(fill)


@pytest.fixture
def engine_on(book_bars) -> Callable[..., BacktestEngine]:
    """An engine with one leg whose five levels of a million units lie half a tick of 1e-12 around the mids."""

    def make(mids, *, instrument=SPOT, cash=100.0, rate=0.0, delay=0, book=None, leg=None, **settings):
        execution = ExecutionSettings(commission_rate=rate, execution_delay_bars=delay)
        engine = BacktestEngine(cash, settings=EngineSettings(**settings), execution=execution)
        bars = mids if isinstance(mids, pl.DataFrame) else book_bars(mids, **{"tick": 1e-12, **(book or {})})
        engine.add(instrument, bars, **(leg or {}))
        return engine

    return make


@pytest.fixture
def book_frame() -> Callable[..., pl.DataFrame]:
    """Snapshots or bars with the given levels, [(price, size), ...] best first, a side each, at the given minutes."""

    def make(minutes, bids, asks, **columns) -> pl.DataFrame:
        start = np.datetime64("2024-01-01T00:00", "us")
        times = start + (np.asarray(minutes) * 60_000_000).astype("timedelta64[us]")
        data = {"timestamp": pl.Series(times).dt.replace_time_zone("UTC")} | columns
        for name, side in (("bid", bids), ("ask", asks)):
            for level in range(5):
                for field, number in (("price", 0), ("size", 1)):
                    data[f"{name}{level + 1}_{field}"] = pl.Series(
                        [row[level][number] if level < len(row) else None for row in side], dtype=pl.Float64
                    )
        return pl.DataFrame(data)

    return make


@pytest.fixture
def bars_of(book_frame) -> Callable[..., pl.DataFrame]:
    """Ten-minute bars with given books; each bar's close is its mid."""

    def make(bids, asks, **columns) -> pl.DataFrame:
        count = len(bids)
        mids = [(bid[0][0] + ask[0][0]) / 2 if bid and ask else 100.0 for bid, ask in zip(bids, asks, strict=True)]
        frame = book_frame(10 * np.arange(1, count + 1), bids, asks, **columns)
        prices = {name: pl.Series(mids) for name in ("open", "high", "low", "close")}
        return frame.with_columns(**prices, volume=pl.lit(1.0), segment=pl.lit(0, pl.Int32))

    return make


@pytest.fixture
def scripted() -> type[Scripted]:
    """A strategy that follows a script."""
    return Scripted
