"""Prices of several assets on common rows, from wide frames, from bars tables or generated from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import mark_prices
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings.task_environments import PricePathSettings
from archetype_dagster.types import FloatArray, IndexArray

PriceData = pl.DataFrame | Mapping[str, pl.DataFrame] | PricePathSettings
_FIRST_ROW: Final = np.datetime64("2024-01-01", "us")
_FIRST_PRICE: Final = 100.0


@dataclass(frozen=True)
class PricePanel:
    """Prices of N assets on T rows.

    Attributes:
        timestamps: datetime64[us] (T,), bar ends, UTC.
        prices: float64 (T, N), quote units per base unit.
        names: N assets.
        segment: int64 (T,), grows where rows are missing; nothing reaches from one segment into another.
    """

    timestamps: NDArray[np.datetime64]
    prices: FloatArray
    names: tuple[str, ...]
    segment: IndexArray

    def __len__(self) -> int:
        return len(self.prices)

    @property
    def rows_before(self) -> IndexArray:
        """How many rows of its segment stand before each row, int64 (T,)."""
        return np.arange(len(self)) - np.searchsorted(self.segment, self.segment, side="left")

    @property
    def rows_after(self) -> IndexArray:
        """How many rows of its segment follow each row, int64 (T,)."""
        return np.searchsorted(self.segment, self.segment, side="right") - 1 - np.arange(len(self))


def price_panel(data: PriceData) -> PricePanel:
    """The panel of some data.

    Args:
        data: a wide frame, `timestamp` and a column of closes for each asset; the bars table of one asset, with
            `close` and perhaps a book, whose mid is then the price; bars tables by asset, joined on the bar ends
            that all have; or settings of generated prices. A column `segment` marks gaps; without one every row
            is taken to follow the one before, as sessions do.

    Raises:
        MarketDataError: no row or asset, times that do not increase, or a price that is not positive and finite.
            Nothing is filled.
    """
    if isinstance(data, PricePathSettings):
        data = generated_prices(data)
    if isinstance(data, pl.DataFrame):
        return _panel(_closes(data, "price") if "close" in data.columns else data)
    if not data:
        raise MarketDataError("prices must name at least one asset")
    tables = [_closes(bars, name) for name, bars in data.items()]
    joined = tables[0]
    for table in tables[1:]:
        joined = joined.join(table, on="timestamp", how="inner", suffix="_next", maintain_order="left")
        changes = pl.struct("segment", "segment_next").rle_id().cast(pl.Int64)
        joined = joined.with_columns(changes.alias("segment")).drop("segment_next")
    return _panel(joined)


def generated_prices(settings: PricePathSettings) -> pl.DataFrame:
    """A wide frame of seeded prices: `timestamp` from 2024 on, and `asset_1` .. `asset_N` beginning near 100.

    A log return is v_t (sqrt(c) f_t + sqrt(1 - c) e_t) with f common to all assets and e of each alone, of unit
    variance; both are the sum of an autoregression, the trend, and of white noise. v_t is common and lognormal.
    """
    rows, assets = settings.bars, settings.assets
    generator = numpy_generator(settings.seed, "generated_prices")
    trend, noise = generator.standard_normal((2, rows, assets + 1))
    unit = np.sqrt(settings.trend_share) * _autoregression(trend, settings.trend_memory)
    unit += np.sqrt(1 - settings.trend_share) * noise
    excess = _autoregression(generator.standard_normal((rows, 1)), settings.volatility_memory)
    volatility = settings.volatility_bps * 1e-4 * np.exp(settings.volatility_dispersion * excess)
    share = settings.correlation
    returns = volatility * (np.sqrt(share) * unit[:, :1] + np.sqrt(1 - share) * unit[:, 1:])
    prices = _FIRST_PRICE * np.exp(np.cumsum(returns, axis=0))
    times = _FIRST_ROW + np.arange(rows) * np.timedelta64(settings.bar_seconds, "s")
    columns = {f"asset_{number + 1}": prices[:, number] for number in range(assets)}
    return pl.DataFrame({"timestamp": pl.Series(times).dt.replace_time_zone("UTC")} | columns)


def _autoregression(noise: FloatArray, memory: float) -> FloatArray:
    """Stationary columns of unit variance: x_t = memory x_(t-1) + sqrt(1 - memory^2) noise_t."""
    from scipy.signal import lfilter  # here, because it is slow to load and few need it

    inputs = np.sqrt(1 - memory**2) * noise
    inputs[0] = noise[0]
    return np.asarray(lfilter([1.0], [1.0, -memory], inputs, axis=0), dtype=np.float64)


def _closes(bars: pl.DataFrame, name: str) -> pl.DataFrame:
    """`timestamp`, `segment` and the price of a bars table under the asset's name."""
    missing = {"timestamp", "close"} - set(bars.columns)
    if missing:
        raise MarketDataError(f"bars must have the columns timestamp and close, {name} lacks {sorted(missing)}")
    price = pl.Series(mark_prices(bars)) if "bid1_price" in bars.columns else bars["close"]
    segment = bars["segment"] if "segment" in bars.columns else pl.repeat(0, bars.height, eager=True)
    return pl.DataFrame({"timestamp": bars["timestamp"], "segment": segment.cast(pl.Int64), name: price})


def _panel(frame: pl.DataFrame) -> PricePanel:
    names = [name for name in frame.columns if name not in ("timestamp", "segment")]
    if "timestamp" not in frame.columns or not names or not frame.height:
        raise MarketDataError(f"prices must have rows, a timestamp and an asset, got the columns {frame.columns}")
    for name in names:
        if not frame[name].dtype.is_numeric():
            raise MarketDataError(f"a price must be a number, got type {frame[name].dtype}", field=name)
        usable = (frame[name].is_finite() & (frame[name] > 0)).fill_null(value=False)
        if not usable.all():
            row = int((~usable).arg_true()[0])
            raise MarketDataError(f"a price must be positive and finite, got {frame[name][row]}", row=row, field=name)
    times = frame["timestamp"]
    if not times.dtype.is_temporal() or times.null_count():
        raise MarketDataError(f"times must be dates or datetimes without null, got {times.dtype}", field="timestamp")
    timestamps = times.cast(pl.Datetime("us", getattr(times.dtype, "time_zone", None))).dt.epoch("us").to_numpy()
    if not (np.diff(timestamps) > 0).all():
        row = int(np.argmax(np.diff(timestamps) <= 0)) + 1
        raise MarketDataError(f"times must increase, got {times[row]}", row=row, field="timestamp")
    segment = frame["segment"] if "segment" in frame.columns else pl.repeat(0, frame.height, eager=True)
    return PricePanel(
        timestamps=timestamps.astype("datetime64[us]"),
        prices=frame.select(pl.col(names).cast(pl.Float64)).to_numpy(),
        names=tuple(names),
        # Numbered anew, so that the rows of a segment can be searched for whatever the numbers were.
        segment=segment.rle_id().cast(pl.Int64).to_numpy(),
    )
