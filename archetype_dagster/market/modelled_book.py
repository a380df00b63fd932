"""The book given to bars that came without one: computed from past bars only, seeded, labelled `modelled`."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import bar_column_names
from archetype_dagster.market.book_calibration import BookCalibration
from archetype_dagster.market.ladder import LadderShape, ladder_frame
from archetype_dagster.market.rolling import window_moments
from archetype_dagster.seeding import keyed_normals
from archetype_dagster.settings import ModelledBookSettings, PairSettings
from archetype_dagster.types import FloatArray

_BPS: Final = 1e-4
_PARKINSON: Final = 4 * np.log(2)


def add_modelled_book(
    bars: pl.DataFrame,
    settings: ModelledBookSettings,
    pair: PairSettings,
    *,
    seed: int,
    bar_minutes: int = 10,
) -> pl.DataFrame:
    """Bars with N modelled levels a side and `book_source` "modelled".

    Let v be the volatility in bp per root minute, from the mean of Parkinson's ln(high/low)^2 / (4 ln 2),
    and q the mean volume a minute, both over the last `window_bars` bars of the row's segment, the row
    itself included; the first bars of a segment use what is there. Then the spread is
    2 `half_spread_per_volatility` v and neighbouring levels lie `level_step_per_volatility` v apart, in bp
    of the close and at least a tick; a size is `touch_size_per_volume` q, or `level_size_per_volume` q
    behind the touch, times seeded log-normal noise of mean one that knows the bar's time and nothing else,
    so that the book says nothing about later bars. Where a tick is wider than a step, the size of all the
    levels that fall into the tick is shown at it, which leaves the liquidity within a distance as it was.
    Zero volume over a whole window gives zero sizes.

    Row t depends on its window, its time and the seed only, to the last bit: bars before and after may come and go.

    Args:
        bars: timestamp, open, high, low, close, volume and segment, oldest first; a null
            taker_buy_volume is added where there is none.
        settings: levels, window and calibration file.
        pair: gives the tick size.
        seed: seed of the noise.
        bar_minutes: length of a bar in minutes.

    Raises:
        MarketDataError: `segment` is missing, or a price is too low for the tick.
        SettingsError: the calibration file is missing or wrong.
    """
    if "segment" not in bars.columns:
        raise MarketDataError("a modelled book needs segments; assign them first", field="segment")
    calibration = BookCalibration.from_config(settings.calibration)
    close = bars["close"].to_numpy()
    volatility, volume = _activity(bars, settings.window_bars, bar_minutes)
    times = bars["timestamp"].dt.epoch("us").to_numpy()
    # A level's two sides lie side by side, so that its noise is the same in a deeper book.
    noise = keyed_normals(times, 2 * settings.levels, seed, "modelled_book", pair.base).reshape(-1, settings.levels, 2)
    shape = LadderShape(
        spread=2 * calibration.half_spread_per_volatility * volatility * _BPS * close,
        level_step=calibration.level_step_per_volatility * volatility * _BPS * close,
    )
    merged = shape.steps_per_tick(pair.tick_size)
    sizes = _sizes(noise, volume, merged, calibration)
    book = ladder_frame(close, shape, sizes[0], sizes[1], tick_size=pair.tick_size)
    if "taker_buy_volume" not in bars.columns:
        bars = bars.with_columns(pl.lit(None, pl.Float64).alias("taker_buy_volume"))
    whole = bars.with_columns(pl.lit("modelled").alias("book_source"), *book.get_columns())
    return whole.select(bar_column_names(settings.levels))


def _activity(bars: pl.DataFrame, window: int, bar_minutes: int) -> tuple[FloatArray, FloatArray]:
    """Trailing volatility (bp per root minute) and volume a minute, float64 (T,) each."""
    variance = (pl.col("high") / pl.col("low")).log().pow(2) / _PARKINSON
    values = bars.select("segment", variance=variance, volume="volume")
    age = pl.int_range(pl.len()).over("segment")
    begun = values.select(pl.col("variance", "volume").cum_sum().over("segment") / (age + 1)).to_numpy().T
    window = min(window, max(bars.height, 1))
    # A running mean would carry the residue of every bar before the window.
    whole = window_moments(values.select("variance", "volume").to_numpy().T, window).mean
    is_whole = values.select(age).to_series().to_numpy()[window - 1 :] >= window - 1
    trailing = np.where(is_whole, whole, begun[:, window - 1 :])
    variances, volumes = np.concatenate([begun[:, : window - 1], trailing], axis=1)
    return np.sqrt(variances / bar_minutes) / _BPS, volumes / bar_minutes


def _sizes(noise: FloatArray, volume: FloatArray, merged: FloatArray, calibration: BookCalibration) -> FloatArray:
    """Sizes of both sides, float64 (2, N, T), from normal noise (T, N, 2) and levels per tick (T,)."""
    levels = noise.shape[1]
    dispersion = np.full((levels, 1), calibration.level_dispersion)
    dispersion[0] = calibration.touch_dispersion
    factor = np.exp(np.ascontiguousarray(noise.transpose(2, 1, 0)) * dispersion - dispersion**2 / 2)
    mean = np.broadcast_to(calibration.level_size_per_volume * merged, (levels, len(merged))).copy()
    mean[0] = calibration.touch_size_per_volume + calibration.level_size_per_volume * (merged - 1)
    sizes: FloatArray = factor * mean * volume
    return sizes
