"""A stretch of bars that is built by itself: which records it needs, and which files they lie in.

A bar belongs to the month it lies in, the one that ends at midnight of the first to the month before, so that
a month of trades needs the files of that month and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.files import DataFile
from archetype_dagster.market.record_batches import bar_end

_DAY: Final = timedelta(days=1)
_TARDIS: Final = re.compile(
    r"_(\d{4})-(\d\d)-(\d\d)_[^/]+\.csv(?:\.gz)?$|(?:^|/)(\d{4})/(\d\d)/(\d\d)/[^/]+\.csv(?:\.gz)?$"
)
_BINANCE: Final = re.compile(r"-(\d{4})-(\d\d)(?:-(\d\d))?\.(?:zip|csv|csv\.gz)$")


@dataclass(frozen=True)
class Period:
    """The bars that end after one time and at or before another.

    Attributes:
        after: no bar of the period ends at or before this time, UTC.
        until: no bar of the period ends after this time, UTC.
        bar_minutes: length of a bar.
    """

    after: datetime
    until: datetime
    bar_minutes: int

    @classmethod
    def of_month(cls, month: str, bar_minutes: int) -> Period:
        """The bars of a month.

        Args:
            month: `YYYY-MM`.
            bar_minutes: length of a bar.

        Raises:
            ValueError: no such month.
        """
        first = _first_of(month)
        return cls(first, (first + 31 * _DAY).replace(day=1), bar_minutes)

    @property
    def begins(self) -> datetime:
        """Start of the first bar: no earlier record is needed."""
        return self._bar_border(self.after)

    @property
    def ends(self) -> datetime:
        """End of the last bar: no later record is needed."""
        return self._bar_border(self.until)

    def holds(self, clock: str, *, includes_end: bool) -> pl.Expr:
        """Whether a record's bar is of the period, see `bar_end`; true without a time, so that it is still refused."""
        end = bar_end(clock, self.bar_minutes, includes_end=includes_end)
        return ((end > self.after) & (end <= self.until)).fill_null(value=True)

    def _bar_border(self, moment: datetime) -> datetime:
        epoch, bar = datetime(1970, 1, 1, tzinfo=UTC), timedelta(minutes=self.bar_minutes)
        return epoch + (moment - epoch) // bar * bar


@dataclass(frozen=True)
class NamedDays:
    """The UTC days that a file's name says its records are of.

    Attributes:
        first: first day.
        end: the day after the last one.
        late: how long after its days the file may go on.
    """

    first: date
    end: date
    late: timedelta

    def months(self) -> Iterator[str]:
        """Every month with one of the days, `YYYY-MM`."""
        return months_between(_midnight(self.first), _midnight(self.end) - timedelta(microseconds=1))


def named_days(file: Path) -> NamedDays | None:
    """The days in a file's name where it follows an archive's layout.

    Tardis names its files `binance_trades_2024-06-01_BTCUSDT.csv.gz` or `2024/06/01/BTCUSDT.csv.gz`; a record on
    its way at midnight may arrive in the next day. Binance names them `BTCUSDT-trades-2024-06-01.zip` or, for
    whole months, `BTCUSDT-1m-2024-06.zip`.
    """
    tardis, binance = _TARDIS.search(file.as_posix()), _BINANCE.search(file.name)
    try:
        if tardis is not None:
            first = date(*(int(part) for part in tardis.groups() if part is not None))
            return NamedDays(first, first + _DAY, _DAY)
        if binance is not None:
            year, month, day = binance.groups()
            first = date(int(year), int(month), int(day or 1))
            return NamedDays(first, first + _DAY if day else (first + 31 * _DAY).replace(day=1), timedelta(0))
    except ValueError:
        return None
    return None


def files_of_period(files: Sequence[DataFile], period: Period | None, *, includes_end: bool) -> tuple[DataFile, ...]:
    """The files that may hold records of a period, by the days in their names; all where one file names none.

    Args:
        files: the files of one series.
        period: None for all files.
        includes_end: whether a record at a bar's very end is of that bar, see `bar_end`.
    """
    days = [named_days(file.path) for file in files]
    if period is None or not all(days):
        return tuple(files)
    begins, ends = period.begins, period.ends + timedelta(microseconds=1 if includes_end else 0)
    return tuple(
        file
        for file, day in zip(files, days, strict=True)
        if day is not None and _midnight(day.first) < ends and _midnight(day.end) + day.late > begins
    )


def within_named_days(
    frames: Iterator[pl.DataFrame], files: Sequence[DataFile], *, clock: str
) -> Iterator[pl.DataFrame]:
    """The frames of some files; refuses records outside the days that the files are named for.

    Records elsewhere, as in files cut at a local midnight, would be missing from the period that is built without
    their file. Files that name no days may hold anything.

    Args:
        frames: rows of the files.
        files: the files.
        clock: column with a row's time.

    Raises:
        MarketDataError: a row before the first or after the last of the days; names row's time and days.
    """
    days = [day for file in files if (day := named_days(file.path)) is not None]
    if not days or len(days) < len(files):
        yield from frames
        return
    first, end = min(day.first for day in days), max(day.end for day in days)
    limit = _midnight(end) + max(day.late for day in days)
    for frame in frames:
        outside = frame.filter(~pl.col(clock).is_between(_midnight(first), limit, closed="left"))[clock]
        if len(outside):
            raise MarketDataError(
                f"files named for {first} to {end - _DAY} must hold records of those days (UTC), got {outside[0]}; "
                "set market.by_month to false to read all files at once",
                file=files[0].path.parent,
                field=clock,
            )
        yield frame


def months_between(first: datetime, last: datetime) -> Iterator[str]:
    """Every month from that of one time to that of another, `YYYY-MM`."""
    month = datetime(first.year, first.month, 1, tzinfo=UTC)
    while month <= last:
        yield f"{month:%Y-%m}"
        month = (month + 31 * _DAY).replace(day=1)


def joined_months(months: Iterable[str]) -> str:
    """Months as a short list for messages."""
    names = sorted(set(months))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _first_of(month: str) -> datetime:
    if re.fullmatch(r"\d{4}-\d\d", month) is None:
        raise ValueError(f"a month must be YYYY-MM, got {month!r}")
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
