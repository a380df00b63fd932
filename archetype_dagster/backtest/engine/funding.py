"""Funding of swaps: a schedule of rates, checked, and the row of the bars at which each settles.

A settlement at time t is on the position held into t, at the mark of t: before orders and books of a bar end at t fill
anything, and after trades and finer snapshots that bear the very same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.market.candles import times_from_epoch
from archetype_dagster.types import FloatArray, IndexArray

FUNDING_COLUMNS = ("timestamp", "rate")


@dataclass(frozen=True)
class FundingSchedule:
    """Settlements of one swap, oldest first.

    Attributes:
        times: int64 (n,), microseconds since 1970, UTC.
        rates: float64 (n,), fraction of the notional that longs pay to shorts; negative where shorts pay.
        marks: float64 (n,), the venue's mark of that time, quote units; NaN where the bars' own mark counts.
    """

    times: IndexArray
    rates: FloatArray
    marks: FloatArray

    @classmethod
    def none(cls) -> FundingSchedule:
        """No settlements."""
        return cls(np.empty(0, np.int64), np.empty(0), np.empty(0))


def funding_schedule(funding: pl.DataFrame) -> FundingSchedule:
    """The schedule of a funding table.

    Args:
        funding: `timestamp` (Datetime UTC) or `funding_time` (integer ms or us since 1970), `rate` or
            `funding_rate` (fraction a settlement) and, where the venue gives it, `mark_price` (quote units, null
            where it does not). Exchanges stamp a settlement some milliseconds after it: times are rounded to
            the second.

    Raises:
        MarketDataError: a column is missing, a rate is null or not finite, a mark is not positive, or times
            repeat or run backwards.
    """
    time = next((name for name in ("timestamp", "funding_time") if name in funding.columns), None)
    rate = next((name for name in ("rate", "funding_rate") if name in funding.columns), None)
    if time is None or rate is None:
        raise MarketDataError("funding needs the columns timestamp and rate", field=FUNDING_COLUMNS[time is not None])
    stamps = funding[time]
    if stamps.dtype.is_integer():
        stamps = times_from_epoch(stamps)
    elif not (isinstance(stamps.dtype, pl.Datetime) and stamps.dtype.time_zone is not None):
        raise MarketDataError(f"funding times must be UTC, got type {stamps.dtype}", field=time)
    times = stamps.dt.convert_time_zone("UTC").cast(TIMESTAMP).dt.round("1s").dt.epoch("us").to_numpy()
    rates = funding[rate].cast(pl.Float64).to_numpy().copy()
    marks = np.full(len(times), np.nan)
    if "mark_price" in funding.columns:
        marks = funding["mark_price"].cast(pl.Float64).to_numpy().copy()
    _refuse(~np.isfinite(rates), "rate must be finite", rate, rates)
    _refuse((marks <= 0) | np.isinf(marks), "mark must be positive and finite", "mark_price", marks)
    backwards = np.diff(times, prepend=np.int64(-1)) <= 0
    if backwards.any():
        row = int(backwards.argmax())
        at = datetime.fromtimestamp(times[row] / 1e6, UTC)
        raise MarketDataError(f"funding times must increase, got {at:%Y-%m-%d %H:%M:%S}", row=row, field=time)
    return FundingSchedule(times.astype(np.int64), rates, marks)


def _refuse(bad: np.ndarray, rule: str, field: str, values: FloatArray) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise MarketDataError(f"{rule}, got {values[row]}", row=row, field=field)
