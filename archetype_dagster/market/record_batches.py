"""Summing up endless raw records bar by bar in bounded memory, each bar in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.market.ingestion import FaultCount

BAR_END: Final = "timestamp"
RECORD_TIME: Final = "record_time"
BATCH_ROWS: Final = 50_000
BATCH_BYTES: Final = 12 * 2**20
_CELL_BYTES: Final = 8
_MICROSECONDS_PER_MINUTE: Final = 60_000_000


@dataclass(frozen=True)
class BarPart:
    """What raw records of one kind say of bars.

    Attributes:
        rows: `timestamp` (bar end) and the part's columns, oldest first; bars without records are absent.
        records: records read.
        first: time of the first record, UTC; None where there is none.
        last: time of the last record, UTC; None where there is none.
        faults: faults of records.
        candle: length of a candle; None for other records and where no candle is usable.
    """

    rows: pl.DataFrame
    records: int
    first: datetime | None
    last: datetime | None
    faults: tuple[FaultCount, ...]
    candle: timedelta | None = None


def bar_end(clock: str, bar_minutes: int, *, includes_end: bool) -> pl.Expr:
    """End of the bar a record belongs to.

    Args:
        clock: name of the record's time.
        bar_minutes: length of a bar.
        includes_end: whether a record at a bar's very end is of that bar (a book, which is then known)
            or of the next one (a trade, as in exchanges' candles).
    """
    bar = bar_minutes * _MICROSECONDS_PER_MINUTE
    time = pl.col(clock).dt.epoch("us")
    end = -(-time // bar) * bar if includes_end else time // bar * bar + bar
    return end.cast(TIMESTAMP)


def summarise_bars(
    records: pl.LazyFrame,
    summarise: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    bar_minutes: int,
    includes_end: bool,
    what: str,
) -> pl.DataFrame:
    """One row per bar from records of any number, none from none.

    A bar's records are summed up at once and alone, so that no bit of its row depends on where the batches
    of the reading end, on the number of threads or on any other bar.

    Args:
        records: with `timestamp`, oldest first.
        summarise: gets the records of some whole bars, their time as `record_time` and their bar's end as
            `timestamp`, and returns a row for each bar.
        bar_minutes: length of a bar.
        includes_end: see `bar_end`.
        what: name of the records in messages.

    Raises:
        MarketDataError: records out of order, or a file that cannot be read to its end.
    """
    parts: list[pl.DataFrame] = []
    waiting = pl.DataFrame()
    labelled = records.rename({"timestamp": RECORD_TIME}).with_columns(
        bar_end(RECORD_TIME, bar_minutes, includes_end=includes_end).alias(BAR_END)
    )
    names = labelled.collect_schema().names()
    try:
        for batch in labelled.collect_batches(
            chunk_size=batch_rows(len(names)), maintain_order=True, engine="streaming"
        ):
            if batch.is_empty():
                continue
            rows = pl.concat([waiting, batch], rechunk=True) if waiting.height else batch
            _check_order(rows[RECORD_TIME], what)
            is_last = rows[BAR_END] == rows[BAR_END][-1]
            whole, waiting = rows.filter(~is_last), rows.filter(is_last)
            if whole.height:
                parts.append(summarise(whole))
    except pl.exceptions.PolarsError as error:
        raise MarketDataError(f"{what} cannot be read to their end: {error}") from error
    if not waiting.height:
        return summarise(pl.DataFrame(schema=labelled.collect_schema()))
    return pl.concat([*parts, summarise(waiting)])


def batch_rows(columns: int, *, rows: int | None = None) -> int:
    """Rows that are held in memory at once: `rows`, or as many of so many columns as `BATCH_BYTES` hold, if fewer.

    Args:
        columns: number of columns, counted as eight bytes a cell.
        rows: the most rows; None for `BATCH_ROWS`.
    """
    return max(1, min(BATCH_ROWS if rows is None else rows, BATCH_BYTES // (_CELL_BYTES * columns)))


def refusable(fault: str, unit: str, count: int, times: pl.Series, policy: str) -> FaultCount:
    """The count of a fault; `MarketDataError` where there are some and the policy is `refuse`.

    Args:
        fault: its name in `IngestionSettings`.
        unit: what is counted.
        count: how many.
        times: times of some with the fault, the earliest among them.
        policy: the setting's value.
    """
    if count and policy == "refuse":
        earliest: object = times.min()
        raise MarketDataError(f"{fault} 'refuse': {count} {unit} have this fault, the first at {earliest}")
    return FaultCount(fault, unit, count, policy)


def time_at(times: pl.Series, index: int) -> datetime | None:
    """One of some times; None where there are none."""
    time: datetime | None = times[index] if len(times) else None
    return time


def _check_order(times: pl.Series, what: str) -> None:
    if times.null_count():
        raise MarketDataError(f"{what} must have a time, got null", field="timestamp")
    if not times.is_sorted():
        raise MarketDataError(f"{what} must come oldest first", field="timestamp")
