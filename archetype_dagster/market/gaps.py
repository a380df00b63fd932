"""The breaks of a bars table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl


@dataclass(frozen=True)
class Gap:
    """A break between two neighbouring rows.

    Attributes:
        last_before: end of the last bar before the break, UTC.
        first_after: end of the first bar after it, UTC.
        missing_bars: bars of the regular grid that lie strictly between; 0 where only a bar off the grid intervenes.
    """

    last_before: datetime
    first_after: datetime
    missing_bars: int


def find_gaps(timestamps: pl.Series, step: int) -> tuple[Gap, ...]:
    """Every place where a row does not end one bar after the last.

    Args:
        timestamps: bar ends, Datetime(us, UTC), oldest first.
        step: length of a bar in microseconds.
    """
    end = timestamps.dt.epoch("us")
    table = pl.DataFrame({"last_before": timestamps.shift(1), "first_after": timestamps, "end": end}).with_columns(
        before=pl.col("end").shift(1)
    )
    broken = table.filter(pl.col("end") - pl.col("before") != step)
    # Grid points strictly between the two ends: ceil(end / step) - floor(before / step) - 1.
    missing = -(-pl.col("end") // step) - pl.col("before") // step - 1
    rows = broken.select("last_before", "first_after", missing.alias("missing_bars")).iter_rows()
    return tuple(Gap(*row) for row in rows)
