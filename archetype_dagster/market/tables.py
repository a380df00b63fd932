"""Tables read block by block into canonical records in order of time, whatever kind of file they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import RowBlock, clock_times, naming
from archetype_dagster.market.row_stream import in_order, scan_frames

OPEN_CLOCKS: Final = ("open_time", "bar_open_ms", "date", "timestamp", "time")
BOOK_CLOCKS: Final = ("timestamp", "ts_ms", "ts_us", "ts", "local_timestamp", "system_time", "time")
CLOCKS: Final = frozenset((*OPEN_CLOCKS, *BOOK_CLOCKS, "close_time"))


@dataclass(frozen=True)
class Table:
    """One table of a file.

    Attributes:
        label: how messages call it.
        head: its first rows, a thousand at most, which tell its columns and their types.
        scan: makes its rows as blocks, each with the named columns.
    """

    label: str
    head: pl.DataFrame
    scan: Callable[[Sequence[str]], Iterator[RowBlock]]

    def first_of(self, names: Sequence[str]) -> str | None:
        """The first of the names that is a column."""
        return next((name for name in names if name in self.head.columns), None)

    def clock(self, names: Sequence[str]) -> str:
        """The column that tells a row's time; `MarketDataError` where there is none of the names."""
        name = self.first_of(names)
        if name is None:
            raise MarketDataError(
                f"no clock: a row's time must stand in {', '.join(names)}; there are columns {self.columns()}",
                file=self.label,
            )
        return name

    def columns(self) -> str:
        """Names of the first columns, for messages."""
        return ", ".join(self.head.columns[:12])


def scan_tables(
    tables: Sequence[Table],
    columns: Callable[[Table], Sequence[str]],
    convert: Callable[[Table, pl.DataFrame], pl.DataFrame],
    *,
    schema: Mapping[str, pl.DataType],
    by: Sequence[str],
) -> pl.LazyFrame:
    """The converted rows of tables of one kind in order of `by`, time first.

    Args:
        tables: the tables, in any order.
        columns: names a table's conversion reads.
        convert: makes canonical rows of a block of a table's rows.
        schema: canonical columns and types.
        by: columns to sort by; equal rows stay as they stood.
    """

    def converted(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
        try:
            return convert(table, rows)
        except pl.exceptions.PolarsError as error:
            raise MarketDataError(f"a cell is not of its column's type ({error})") from error

    firsts: list[Any] = []
    for table in tables:
        with naming(table.label):
            firsts.append(converted(table, table.head.select(columns(table)))[by[0]].min())
    ordered = [tables[index] for index in sorted(range(len(tables)), key=lambda index: firsts[index])]

    def blocks() -> Iterator[RowBlock]:
        for table in ordered:
            for block in table.scan(columns(table)):
                yield block.convert(partial(converted, table))

    return scan_frames(schema, lambda: in_order(blocks(), by=by))


def utc_times(values: pl.Series) -> pl.Series:
    """Times of a column as Datetime(us, UTC); a time without a zone is UTC.

    Integers count ms, us or ns by the magnitude of each; text is ISO 8601.

    Raises:
        MarketDataError: null, outside the expected span, or no time; names row and field.
    """
    name = values.name
    if isinstance(values.dtype, pl.Datetime):
        unit = values.dtype.time_unit
        values = values.dt.epoch("us" if unit == "ms" else unit)
    elif values.dtype == pl.String():
        parsed = values.str.replace(r"Z$|\+00:?00$", "").str.replace("T", " ", literal=True)
        read = parsed.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
        bad = values.is_not_null() & read.is_null()
        if bad.any():
            row = int(bad.arg_true()[0])
            raise MarketDataError(f"time must be ISO 8601 in UTC, got {values[row]!r}", row=row, field=name)
        values = read.dt.epoch("us")
    elif not values.dtype.is_integer():
        raise MarketDataError(f"time must be an integer, a time or text, got type {values.dtype}", field=name)
    # What does not fit into 64 bits is no time in any unit.
    return clock_times(values.cast(pl.Int64, strict=False).alias(name))
