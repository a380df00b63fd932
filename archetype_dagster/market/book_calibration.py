"""Measuring real order books so that the modelled book resembles them; the numbers live in `configs/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import yaml

from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.market.bars import num_book_levels, side_matrix
from archetype_dagster.market.candles import read_parquet
from archetype_dagster.settings import config_text
from archetype_dagster.types import FloatArray, JsonDict

SIGNIFICANT_DIGITS: Final = 4
_BPS: Final = 1e4


@dataclass(frozen=True)
class BookCalibration:
    """Shape of a real book relative to the market's activity; volatility is in bp per square root of a minute.

    Attributes:
        half_spread_per_volatility: mean half spread in bp over volatility.
        level_step_per_volatility: distance between neighbouring levels in bp over volatility.
        touch_size_per_volume: mean size at the best quote over the volume traded in a minute.
        level_size_per_volume: mean size at a deeper level over the volume traded in a minute.
        touch_dispersion: standard deviation of the logarithm of the size at the best quote, for a
            log-normal with the measured mean and median.
        level_dispersion: the same of a deeper level.
    """

    half_spread_per_volatility: float
    level_step_per_volatility: float
    touch_size_per_volume: float
    level_size_per_volume: float
    touch_dispersion: float
    level_dispersion: float

    @classmethod
    def from_config(cls, name: str) -> Self:
        """The calibration shipped in `configs/`; `SettingsError` names the file and the key at fault."""
        try:
            raw = yaml.safe_load(config_text(name))
        except FileNotFoundError:
            raise SettingsError(f"calibration file {name!r} is not in configs/") from None
        expected = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or set(raw) != expected:
            raise SettingsError(f"calibration file {name!r} must hold exactly the keys {', '.join(sorted(expected))}")
        for key, value in raw.items():
            if not isinstance(value, float | int) or not 0 < value < float("inf"):
                raise SettingsError(f"calibration file {name!r}: {key} must be a positive number, got {value!r}")
        return cls(**{key: float(value) for key, value in raw.items()})

    def as_dict(self) -> JsonDict:
        """The numbers as written to YAML, to four significant digits."""
        return {key: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for key, value in asdict(self).items()}


def calibrate_modelled_book(samples: Sequence[tuple[Path, Path]]) -> BookCalibration:
    """Measure real books: the geometric mean over the samples of each number of `BookCalibration`.

    Args:
        samples: pairs of Parquet files of one instrument and one span. The book has `ts_ms`,
            increasing, and N >= 5 levels named as in a bars table; the trades have `ts_ms` and
            `quantity` in base units.

    Raises:
        MarketDataError: a file is unreadable or holds too little to measure; names the file.
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("samples must hold at least one pair of files, got none")
    measured = np.array([_measure(book, trades) for book, trades in samples])
    return BookCalibration(*np.exp(np.log(measured).mean(axis=0)).tolist())


def _measure(book_file: Path, trades_file: Path) -> list[float]:
    book, trades = read_parquet(book_file), read_parquet(trades_file)
    for frame, file, names in ((book, book_file, ("ts_ms",)), (trades, trades_file, ("ts_ms", "quantity"))):
        for name in names:
            if name not in frame.columns:
                raise MarketDataError("a calibration file must have this column", file=file, field=name)
    if book.height < 2:
        raise MarketDataError(f"a calibration needs at least 2 snapshots, got {book.height}", file=book_file)
    levels = num_book_levels(book)
    bid, ask = (side_matrix(book, side, "price", levels) for side in ("bid", "ask"))
    sizes = np.concatenate([side_matrix(book, side, "size", levels) for side in ("bid", "ask")])
    mid = (bid[:, :1] + ask[:, :1]) / 2
    first, last = book["ts_ms"][0], book["ts_ms"][-1]
    minutes = (last - first) / 60_000
    volatility = _BPS * np.sqrt(np.square(np.diff(np.log(mid[:, 0]))).sum() / minutes)
    volume = trades.filter(pl.col("ts_ms").is_between(first, last))["quantity"].sum() / minutes
    if not (volatility > 0 and volume > 0):
        raise MarketDataError(
            f"a calibration needs price changes and trades, got volatility {volatility:g} bp and volume {volume:g} "
            "a minute",
            file=book_file,
        )
    distance = _BPS * np.concatenate([mid - bid, ask - mid]).mean(axis=0) / mid.mean()
    # Least-squares slope of distance over level number: one step, whatever the first level does.
    step = np.polyfit(np.arange(levels), distance, 1)[0]
    return [
        float(distance[0] / volatility),
        float(step / volatility),
        float(sizes[:, 0].mean() / volume),
        float(sizes[:, 1:].mean() / volume),
        _log_dispersion(sizes[:, 0]),
        _log_dispersion(sizes[:, 1:].ravel()),
    ]


def _log_dispersion(sizes: FloatArray) -> float:
    # A log-normal with the sizes' own mean and median; quartiles would follow the dust orders instead.
    return float(np.sqrt(2 * np.log(sizes.mean() / np.median(sizes))))
