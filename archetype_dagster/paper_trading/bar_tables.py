"""Files of bars read without judgement: a cell that cannot be read is null, and its row is judged like any other."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import BARS_SCHEMA, TIMESTAMP, bar_column_names, num_book_levels
from archetype_dagster.market.tables import utc_times

SUFFIXES: Final = (".parquet", ".csv")


def read_bar_table(path: Path, *, growing: bool = False) -> pl.DataFrame:
    """The rows of a Parquet or CSV file with the columns of the bars schema, `segment` left out.

    `timestamp` is a time with its zone, text in ISO 8601 (UTC where it names no zone) or an integer of ms,
    us or ns.

    Args:
        path: the file.
        growing: whether lines may still be added to a CSV, so that text after its last line end is not read yet.

    Raises:
        MarketDataError: unreadable, of another format, or without a column that bars must have.
    """
    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else _csv(path, growing)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise MarketDataError(f"not a readable table of bars ({error})", file=path) from error
    for name in ("timestamp", "open", "high", "low", "close", "volume", "book_source"):
        if name not in table.columns:
            raise MarketDataError("a bars table must have this column", file=path, field=name)
    names = [name for name in bar_column_names(num_book_levels(table)) if name in table.columns and name != "segment"]
    numbers = [
        pl.col(name).cast(pl.Float64, strict=False) for name in names if name not in ("timestamp", "book_source")
    ]
    return table.select(names).with_columns(
        _times(table["timestamp"]), *numbers, pl.col("book_source").cast(BARS_SCHEMA["book_source"], strict=False)
    )


def _csv(path: Path, growing: bool) -> pl.DataFrame:
    content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1] if growing else content
    return pl.read_csv(io.BytesIO(lines), infer_schema=False, truncate_ragged_lines=True)


def _times(values: pl.Series) -> pl.Series:
    """Times as Datetime(us, UTC), null where a value is none."""
    if values.dtype == pl.String():
        whole = values.cast(pl.Int64, strict=False)
        if whole.null_count() == values.null_count():
            values = whole
    try:
        return utc_times(values)
    except MarketDataError:
        return pl.Series(values.name, [_time(values[row : row + 1]) for row in range(len(values))], TIMESTAMP)


def _time(value: pl.Series) -> object:
    try:
        return utc_times(value)[0]
    except MarketDataError:
        return None
