"""Candle files: times read by their magnitude, rows checked, whole bars built from finer candles."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.market.validation import check_candles, check_times, raise_first

CANDLE_COLUMNS: Final = ("open_time", "open", "high", "low", "close", "volume")
EXPECTED_SPAN: Final = (datetime(2009, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
_FIRST_MICROSECOND_VALUE: Final = 10**14
_MICROSECONDS_PER_MINUTE: Final = 60_000_000


def times_from_epoch(values: pl.Series) -> pl.Series:
    """Integer times since 1970 as Datetime(us, UTC); milliseconds or microseconds by the size of each value.

    From 10^14 on a value counts microseconds, below it milliseconds: exchange archives changed the
    unit on 2025-01-01, and within the expected span the two ranges do not meet.

    Raises:
        MarketDataError: a value is null or its date lies outside 2009..2099, as seconds and
            nanoseconds would.
    """
    frame = values.to_frame()
    value = pl.col(values.name)
    raise_first(frame, value.is_null(), values.name, "time must not be null")
    micros = pl.when(value >= _FIRST_MICROSECOND_VALUE).then(value).otherwise(value * 1000)
    low, high = (int(moment.timestamp()) * 1_000_000 for moment in EXPECTED_SPAN)
    rule = f"time must be milliseconds or microseconds of {EXPECTED_SPAN[0]:%Y} to {EXPECTED_SPAN[1].year - 1}"
    raise_first(frame, (micros < low) | (micros >= high), values.name, rule)
    return frame.select(micros.cast(pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")).to_series()


def bars_from_candles(candles: pl.DataFrame, *, bar_minutes: int) -> pl.DataFrame:
    """Bars labelled by their END from candles labelled by their START.

    Only whole bars are made: where one candle of a bar is missing or starts off the candles' grid,
    the bar is missing too. A bar reads its own candles and nothing else.

    Args:
        candles: open_time (integer ms or us since 1970, or Datetime), open, high, low, close in quote
            units, volume in base units and, where the source has them, taker_buy_volume and close_time,
            which tells the candles' length (else their usual distance does); oldest first.
        bar_minutes: length of a bar; a multiple of the candles' length.

    Returns:
        timestamp, open, high, low, close, volume, taker_buy_volume (null where the source has none).

    Raises:
        MarketDataError: missing column, unsorted or repeated times, impossible prices or volumes, or
            candles too long for the bars; names row, field and rule.
    """
    for name in CANDLE_COLUMNS:
        if name not in candles.columns:
            raise MarketDataError("a candle file must have this column", field=name)
        if name != "open_time" and not candles.schema[name].is_numeric():
            raise MarketDataError(f"column must be numeric, got {candles.schema[name]}", field=name)
    starts = _start_times(candles["open_time"])
    check_times(starts)
    check_candles(candles)
    start = starts.dt.epoch("us").to_numpy()
    if "close_time" in candles.columns:
        candle = int((_start_times(candles["close_time"])[:1].dt.epoch("us") - start[0])[0])
    else:
        candle = _usual_distance(start)
    bar = bar_minutes * _MICROSECONDS_PER_MINUTE
    _check_divides(candle, bar_minutes)
    per_bar = bar // candle

    end = start // bar * bar + bar
    first = np.flatnonzero(np.diff(end, prepend=-1))
    count = np.diff(np.append(first, len(end)))
    on_grid = np.logical_and.reduceat(start % candle == 0, first)
    first = first[(count == per_bar) & on_grid]
    rows = first[:, None] + np.arange(per_bar)
    blocks = {name: candles[name].cast(pl.Float64).to_numpy()[rows] for name in CANDLE_COLUMNS[1:]}
    taker = None
    if "taker_buy_volume" in candles.columns:
        taker = pl.Series(candles["taker_buy_volume"].cast(pl.Float64).to_numpy()[rows].sum(axis=1)).fill_nan(None)
    return pl.DataFrame(
        {
            "timestamp": pl.Series(end[first]).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
            "open": blocks["open"][:, 0],
            "high": blocks["high"].max(axis=1),
            "low": blocks["low"].min(axis=1),
            "close": blocks["close"][:, -1],
            "volume": blocks["volume"].sum(axis=1),
            "taker_buy_volume": taker,
        },
        schema_overrides={"taker_buy_volume": pl.Float64},
    )


def read_parquet(path: Path) -> pl.DataFrame:
    """A Parquet file as a table; `MarketDataError` names the file that is missing, truncated or foreign."""
    if not path.is_file():
        raise MarketDataError("file does not exist", file=path)
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise MarketDataError(f"not a readable Parquet file ({error})", file=path) from error


def _start_times(times: pl.Series) -> pl.Series:
    if times.dtype.is_integer():
        return times_from_epoch(times)
    if isinstance(times.dtype, pl.Datetime) and times.dtype.time_zone is not None:
        return times.dt.convert_time_zone("UTC").cast(TIMESTAMP)
    raise MarketDataError(
        f"open_time must be an integer or a time with a time zone, got type {times.dtype}", field=times.name
    )


def _usual_distance(start: np.ndarray) -> int:
    """Most frequent distance between neighbouring starts in microseconds."""
    if len(start) < 2:
        raise MarketDataError("two candles are needed to tell their length, got one", field="open_time")
    distances, counts = np.unique(np.diff(start), return_counts=True)
    return int(distances[np.argmax(counts)])


def _check_divides(candle: int, bar_minutes: int) -> None:
    bar = bar_minutes * _MICROSECONDS_PER_MINUTE
    if candle > bar or bar % candle:
        raise MarketDataError(
            f"candles must divide a bar of {bar_minutes} minutes, got candles of "
            f"{candle / _MICROSECONDS_PER_MINUTE:g} minutes",
            field="open_time",
        )
