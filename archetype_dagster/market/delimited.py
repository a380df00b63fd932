"""Comma-separated tables, block by block: header row or none, columns by name or place, each fault with its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.candles import times_from_epoch
from archetype_dagster.market.files import DataFile
from archetype_dagster.market.read_ahead import ahead
from archetype_dagster.market.validation import raise_first

_BOOLEANS: Final = ("true", "false", "True", "False")
_FIRST_NANOSECOND_VALUE: Final = 10**17
_UNNAMED: Final = "column {}"


@dataclass(frozen=True)
class Layout:
    """The columns of one kind of file.

    Attributes:
        what: what the file is, for messages: "Tardis trades".
        columns: type of each column wanted, by the name the reader gives it.
        clock: the column that tells a row's time: an integer since 1970 or "YYYY-MM-DD hh:mm:ss".
        orders: names of a file's columns from left to right, for files without a header row, told apart
            by their number. Names that are not in `columns` are skipped.
        aliases: other names a header row may use.
    """

    what: str
    columns: Mapping[str, pl.DataType]
    clock: str
    orders: Sequence[Sequence[str]]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def names(self, file: DataFile) -> tuple[list[str], bool]:
        """The file's columns from left to right, and whether they stand in its first row.

        Raises:
            MarketDataError: the file is empty, a column is missing, or there is no header row and the
                number of columns is none of the known ones.
        """
        first = _trimmed(file.head()).split(b"\n", 1)[0].strip()
        if not first:
            raise MarketDataError("file is empty", file=file.label)
        cells = [cell.strip().strip('"') for cell in first.decode("utf-8", "replace").split(",")]
        known = {name for order in self.orders for name in order} | set(self.columns) | set(self.aliases)
        if known.isdisjoint(cells):
            for order in self.orders:
                if len(order) == len(cells):
                    return list(order), False
            lengths = " or ".join(str(len(order)) for order in self.orders)
            raise MarketDataError(
                f"{self.what} without a header row must have {lengths} columns, got {len(cells)}", file=file.label
            )
        names = [self.aliases.get(cell, cell) for cell in cells]
        for name in self.columns:
            if names.count(name) != 1:
                rule = f"{self.what} must have this column once; there are {', '.join(cells[:12])}"
                raise MarketDataError(rule, file=file.label, field=name)
        return names, True


@dataclass(frozen=True)
class RowBlock:
    """Some neighbouring rows of a file.

    Attributes:
        rows: a table.
        file: where they are from.
        first_row: number of the first of them in the file, counted from 0 without the header row.
    """

    rows: pl.DataFrame
    file: str
    first_row: int

    def convert(self, function: Callable[[pl.DataFrame], pl.DataFrame]) -> RowBlock:
        """The block with `function(rows)`; a `MarketDataError` inside is told with file and row of the file."""
        with naming(self.file, self.first_row):
            return RowBlock(function(self.rows), self.file, self.first_row)


@contextmanager
def naming(file: str, first_row: int = 0) -> Iterator[None]:
    """Name the file in each `MarketDataError` inside that names none, and count its row from the file's start."""
    try:
        yield
    except MarketDataError as error:
        if error.file is not None:
            raise
        row = None if error.row is None else error.row + first_row
        raise MarketDataError(error.rule, file=file, row=row, field=error.field) from error


def read_blocks(file: DataFile, layout: Layout) -> Iterator[RowBlock]:
    """A file's rows block by block, with the columns and types of `layout.columns`; empty cells are null, blank
    lines are not counted.

    Raises:
        MarketDataError: as `Layout.names`, or a row with too few or too many cells or a cell that is no
            value of its column's type; with file, row, field and value.
    """
    names, has_header = layout.names(file)
    first_row = 0
    for text in ahead(file.blocks()):
        block = _trimmed(text)
        if has_header and block:
            block = block.partition(b"\n")[2]
            has_header = False
        if not block:
            continue
        with naming(file.label, first_row):
            rows = _parse(block, names, layout)
        yield RowBlock(rows, file.label, first_row)
        first_row += rows.height


def first_time(file: DataFile, layout: Layout) -> int | None:
    """Microseconds since 1970 of a file's first row, None where it has no rows; see `read_blocks` for errors."""
    names, has_header = layout.names(file)
    lines = _without_blank_lines(_trimmed(file.head())).split(b"\n", 2)[has_header : has_header + 1]
    if not lines:
        return None
    with naming(file.label):
        return int(clock_times(_parse(lines[0], names, layout)[layout.clock]).dt.epoch("us")[0])


def clock_times(values: pl.Series) -> pl.Series:
    """Times of a column as Datetime(us, UTC).

    Integers count milliseconds, microseconds or nanoseconds, each row by its own magnitude (see
    `times_from_epoch`); nanoseconds are rounded up, so that nothing is known too early. Text is UTC, to the second.

    Raises:
        MarketDataError: null, outside the expected span, or text that is no time; names row and field.
    """
    if values.dtype != pl.String():
        value = pl.col(values.name)
        micros = pl.when(value >= _FIRST_NANOSECOND_VALUE).then(-(-value // 1000)).otherwise(value)
        return times_from_epoch(values.to_frame().select(micros).to_series())
    time = pl.col(values.name).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us")
    raise_first(values.to_frame(), time.is_null(), values.name, "time must be written YYYY-MM-DD hh:mm:ss")
    return times_from_epoch(values.to_frame().select(time.dt.epoch("us")).to_series())


def _parse(block: bytes, names: Sequence[str], layout: Layout) -> pl.DataFrame:
    schema = {
        name if name in layout.columns else _UNNAMED.format(index): layout.columns.get(name, pl.String())
        for index, name in enumerate(names)
    }
    try:
        # Read whole: told to skip columns, the reader does not see that a row is too long.
        rows = pl.read_csv(block, has_header=False, quote_char=None, schema=schema)
    except pl.exceptions.PolarsError as error:
        lines = _without_blank_lines(block)
        _raise_first_width(lines, len(names))
        texts = pl.read_csv(lines, has_header=False, quote_char=None, schema=dict.fromkeys(schema, pl.String()))
        _raise_first_cell(texts, layout)
        raise MarketDataError(f"not {layout.what} ({error})") from error
    # A blank or short row is read as one that ends in a null, so that all others need no second look.
    if rows.to_series(-1).null_count():
        lines = _without_blank_lines(block)
        if lines is not block:
            return _parse(lines, names, layout)
        if block.count(b",") != (block.count(b"\n") + 1) * (len(names) - 1):
            _raise_first_width(block, len(names))
    return rows.select(layout.columns.keys())


def _trimmed(text: bytes) -> bytes:
    """The text without a byte order mark and without blank lines at its ends; no line end after the last line."""
    return text.removeprefix(b"\xef\xbb\xbf").strip(b"\r\n")


def _without_blank_lines(block: bytes) -> bytes:
    if b"\n\n" in block or b"\n\r\n" in block:
        return b"\n".join(line for line in block.split(b"\n") if line.strip())
    return block


def _raise_first_width(block: bytes, width: int) -> None:
    for row, line in enumerate(block.split(b"\n")):
        if line.count(b",") != width - 1:
            raise MarketDataError(f"a row must have {width} cells, got {line.count(b',') + 1}", row=row)


def _raise_first_cell(texts: pl.DataFrame, layout: Layout) -> None:
    for name, dtype in layout.columns.items():
        text = texts[name]
        good = text.is_in(_BOOLEANS) if dtype == pl.Boolean() else text.cast(dtype, strict=False).is_not_null()
        bad = text.is_not_null() & ~good
        if bad.any():
            row = int(bad.arg_true()[0])
            raise MarketDataError(f"cell must be of type {dtype}, got {text[row]!r}", row=row, field=name)
