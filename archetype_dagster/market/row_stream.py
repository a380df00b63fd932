"""Rows of many files as one lazy frame in order of time, a few blocks in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import polars as pl
from polars.io.plugins import register_io_source

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import Layout, RowBlock, first_time, read_blocks
from archetype_dagster.market.files import DataFile
from archetype_dagster.market.read_ahead import ahead
from archetype_dagster.market.record_batches import batch_rows

HELD_ROWS: Final = 65_536
"""Rows held back to be put in order, fewer of wide tables (see `batch_rows`): rows of one series may be out of order
by so many and no more."""

Frames = Iterator[pl.DataFrame]


def scan_frames(schema: Mapping[str, pl.DataType], frames: Callable[[], Frames]) -> pl.LazyFrame:
    """A lazy frame over the tables that `frames` makes, one after the other, anew for each collection.

    Args:
        schema: columns and types of every table.
        frames: makes the tables; an error it raises reaches whoever collects.
    """

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Frames:
        left = n_rows
        for frame in frames():
            wanted = frame if left is None else frame.head(left)
            left = None if left is None else left - wanted.height
            if predicate is not None:
                wanted = wanted.filter(predicate)
            yield wanted if with_columns is None else wanted.select(with_columns)
            if left == 0:
                return

    return register_io_source(source, schema=dict(schema), validate_schema=True)


def read_in_order(
    files: Sequence[DataFile],
    layout: Layout,
    convert: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    by: Sequence[str],
) -> Frames:
    """The converted rows of all files, sorted by `by`; equal rows stay as they stood.

    Files follow each other by the time of their first row.

    Args:
        files: the files of one series.
        layout: their columns.
        convert: makes canonical rows of a block's rows; may drop rows.
        by: columns of the converted rows to sort by, the time first.

    Raises:
        MarketDataError: see `read_blocks` and `in_order`.
    """
    ordered = following(files, lambda file: first_time(file, layout))
    blocks = (block for file in ordered for block in read_blocks(file, layout))
    return in_order(ahead(block.convert(convert) for block in blocks), by=by)


def following(files: Sequence[DataFile], start: Callable[[DataFile], int | None]) -> list[DataFile]:
    """Files by their `start`, the time of their first row, whatever their names say; those without a row left out."""
    starts = [(start(file), file) for file in files]
    rows = [(time, file.label, file) for time, file in starts if time is not None]
    return [file for _, _, file in sorted(rows, key=lambda entry: entry[:2])]


def in_order(blocks: Iterable[RowBlock], *, by: Sequence[str], held_rows: int | None = None) -> Frames:
    """Tables of the blocks' rows in which everything is sorted by `by`; equal rows stay as they stood.

    The newest `held_rows` rows, by default as many as `HELD_ROWS` says, are held back until later ones are
    in, so a row is put in its place across blocks and files as long as it is not more than that out of
    order. Fewer rows than that are sorted whole.

    Raises:
        MarketDataError: a row lies further back, as in files that overlap; names the file.
    """
    time = by[0]
    held: pl.DataFrame | None = None
    done: datetime | None = None
    for block in blocks:
        held_rows = held_rows or batch_rows(block.rows.width, rows=HELD_ROWS)
        if done is not None and (block.rows[time] <= done).any():
            rule = (
                f"rows must be in order of time to within {held_rows} rows, got one not after {done}; do files overlap?"
            )
            raise MarketDataError(rule, file=block.file, field=time)
        held = block.rows if held is None else pl.concat([held, block.rows])
        if held.height >= 2 * held_rows:
            held = _sorted(held, by)
            # Rows of one time stay together, so that ties are put in order too.
            cut = held[time].search_sorted(held[time][held.height - held_rows], side="left")
            if cut:
                done = held[time][cut - 1]
                yield held.head(cut)
                held = held.tail(held.height - cut)
    if held is not None and held.height:
        yield _sorted(held, by)


def _sorted(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    if len(by) == 1 and frame[by[0]].is_sorted():
        return frame
    return frame.sort(*by, maintain_order=True)
