"""Books rebuilt from single level changes, as they stood after the last change of each interval.

Which changes belong together and from when on a book is known is told by the vendors' readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import TIMESTAMP, book_columns
from archetype_dagster.market.raw import books_schema
from archetype_dagster.types import FloatArray, IndexArray

NEVER: Final = 2**62
"""`known_from` of a book that stays unknown until its next reset."""

CHANGES_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "is_bid": pl.Boolean(),
    "price": pl.Float64(),
    "size": pl.Float64(),
    "reset": pl.Boolean(),
    "known_from": pl.Int64(),
}
"""Level changes in order of arrival: `size` is the level's new size, 0 removes it, a null price changes nothing;
`reset` empties the book before the change; `known_from` (microseconds since 1970, read in reset rows only) is when
the book counts as whole."""

_MATRIX_CELLS: Final = 4_000_000


@dataclass(frozen=True)
class _Book:
    """All levels of a book at one time: prices of bids negative, so that a side's best is its lowest key."""

    keys: FloatArray
    sizes: FloatArray
    known_from: int


def rebuild_books(changes: Iterator[pl.DataFrame], *, levels: int, interval_seconds: int) -> Iterator[pl.DataFrame]:
    """Books from level changes: one for each interval in which anything changed and the book is known.

    The intervals are (k s, (k+1) s] of UTC. The book is the one after the last change in the interval,
    and its timestamp is that change's: so with s dividing the bar, the last book at or before a bar's end is
    exact, and its age is the feed's. Before the first reset nothing is known.

    Many intervals are done at once: the last size written to each (interval, price) is put into a
    table, sizes are carried down the intervals column by column, and the best `levels` that are
    not zero are picked by counting along each row. The work in Python is per block, not per change.

    Args:
        changes: tables of `CHANGES_SCHEMA`, sorted by time over all of them.
        levels: levels N kept on each side.
        interval_seconds: length s of an interval in seconds.

    Yields:
        Tables of `books_schema(levels)`; null where the book ends.

    Raises:
        MarketDataError: there are changes but never a known book.
    """
    found = False
    book = _Book(np.empty(0), np.empty(0), NEVER)
    pending: pl.DataFrame | None = None
    for frame in changes:
        pending = frame if pending is None else pl.concat([pending, frame])
        if pending.is_empty():
            continue
        cell = _intervals(pending, interval_seconds)
        whole = int(np.searchsorted(cell, cell[-1]))
        if whole:
            book, books = _advance(book, pending.head(whole), cell[:whole], levels)
            found = found or any(made.height for made in books)
            yield from books
            pending = pending.tail(pending.height - whole)
    if pending is None or pending.is_empty():
        return
    _, books = _advance(book, pending, _intervals(pending, interval_seconds), levels)
    yield from books
    if not found and not any(made.height for made in books):
        raise MarketDataError("no book is ever known: no snapshot comes before the changes, or they break off too soon")


def _intervals(frame: pl.DataFrame, interval_seconds: int) -> IndexArray:
    micros: IndexArray = frame["timestamp"].dt.epoch("us").to_numpy()
    return -(-micros // (interval_seconds * 1_000_000))


def _advance(book: _Book, changes: pl.DataFrame, cell: IndexArray, levels: int) -> tuple[_Book, list[pl.DataFrame]]:
    """Take the book through whole intervals, as many at once as a table of bounded size holds."""
    keys_at_most = len(book.keys) + changes.height
    at_once = max(1, _MATRIX_CELLS // keys_at_most)
    first = np.flatnonzero(np.diff(cell, prepend=cell[0] - 1))
    bounds = [*first[::at_once].tolist(), len(cell)]
    books = []
    for start, stop in pairwise(bounds):
        book, made = _advance_once(book, changes[start:stop], cell[start:stop], levels)
        books.append(made)
    return book, books


def _advance_once(book: _Book, changes: pl.DataFrame, cell: IndexArray, levels: int) -> tuple[_Book, pl.DataFrame]:
    is_bid = changes["is_bid"].to_numpy()
    price, size = changes["price"].to_numpy(), changes["size"].to_numpy()
    micros = changes["timestamp"].dt.epoch("us").to_numpy()
    reset = changes["reset"].to_numpy()
    row = np.cumsum(np.diff(cell, prepend=cell[0]) != 0)
    ends = np.append(np.flatnonzero(np.diff(row)), len(row) - 1)
    count = len(ends)

    # A change before the last reset of its interval cannot be seen at the interval's end.
    position = np.arange(len(row))
    last_reset = np.full(count, -1)
    last_reset[row[reset]] = position[reset]
    live = (position >= last_reset[row]) & ~np.isnan(price)
    row, price, size, is_bid = row[live], price[live], size[live], is_bid[live]

    pairs = np.concatenate([book.keys, np.where(is_bid, -price, price)])
    keys, column = np.unique(pairs, return_inverse=True)
    known_columns, new_columns = column[: len(book.keys)], column[len(book.keys) :]
    sizes = np.full((count + 1, len(keys)), np.nan)
    sizes[0] = 0.0
    sizes[0, known_columns] = book.sizes
    sizes[1:][last_reset >= 0] = 0.0
    # Later changes of one level overwrite earlier ones: the last in order of arrival stands.
    sizes[row + 1, new_columns] = size
    sizes = _carried_down(sizes)

    known_from = np.append(book.known_from, changes["known_from"].to_numpy()[np.maximum(last_reset, 0)])
    known_from = known_from[np.maximum.accumulate(np.where(last_reset >= 0, np.arange(1, count + 1), 0))]
    known = micros[ends] >= known_from
    made = _best_levels(sizes[1:][known], keys, changes["timestamp"].gather(ends[known]), levels)
    left = sizes[-1] > 0
    return _Book(keys[left], sizes[-1, left], int(known_from[-1])), made


def _carried_down(sizes: FloatArray) -> FloatArray:
    written = np.where(np.isnan(sizes), 0, np.arange(len(sizes))[:, None])
    carried: FloatArray = np.take_along_axis(sizes, np.maximum.accumulate(written, axis=0), axis=0)
    return carried


def _best_levels(sizes: FloatArray, keys: FloatArray, times: pl.Series, levels: int) -> pl.DataFrame:
    columns: dict[str, FloatArray] = {}
    for side, chosen in (("bid", keys < 0), ("ask", keys >= 0)):
        there = sizes[:, chosen] > 0
        rank = np.cumsum(there, axis=1)
        rows, places = np.nonzero(there & (rank <= levels))
        level = rank[rows, places] - 1
        prices, amounts = np.full((2, len(sizes), levels), np.nan)
        prices[rows, level] = np.abs(keys[chosen])[places]
        amounts[rows, level] = sizes[:, chosen][rows, places]
        for index in range(levels):
            columns[f"{side}{index + 1}_price"] = prices[:, index]
            columns[f"{side}{index + 1}_size"] = amounts[:, index]
    table = pl.DataFrame({"timestamp": times} | {name: columns[name] for name in book_columns(levels)})
    return table.with_columns(pl.exclude("timestamp").fill_nan(None)).match_to_schema(books_schema(levels))
