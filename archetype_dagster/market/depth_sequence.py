"""Numbered depth updates linked into a chain: which follow on each other, and from when on a book is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from archetype_dagster.market.book_rebuild import CHANGES_SCHEMA, NEVER


@dataclass(frozen=True)
class _Chain:
    """The last event taken up: its number, whether it was a snapshot, and the newest snapshot's number."""

    last_id: int = -1
    is_snapshot: bool = False
    snapshot_id: int = -1


def linked_changes(events: Iterator[pl.DataFrame], *, warm_up_seconds: int | None) -> Iterator[pl.DataFrame]:
    """Level changes for `rebuild_books` from numbered events, one row per level.

    A snapshot starts a book that is known at once; updates it already contains are left out. An update
    continues the chain if its `previous_id` is the last event's number or, where the feed has none,
    if its `first_id` is the next number; right after a snapshot it must not leave numbers out. Any other
    update breaks the chain: the book is emptied, and known again from the next snapshot or, with
    `warm_up_seconds`, once so many seconds of unbroken updates have told its levels anew.

    Args:
        events: timestamp, first_id, last_id, previous_id (null or negative where the feed has none),
            is_snapshot, is_bid, price, size; sorted by time, rows of one event together; a price is
            null where an event changes nothing.
        warm_up_seconds: None where only a snapshot makes a book known.

    Yields:
        Tables of `book_rebuild.CHANGES_SCHEMA`.
    """
    chain = _Chain()
    for frame in events:
        newest = pl.when("is_snapshot").then("last_id").cum_max().forward_fill()
        rows = frame.with_columns(contained=pl.max_horizontal(newest, pl.lit(chain.snapshot_id)))
        rows = rows.filter(pl.col("is_snapshot") | (pl.col("last_id") > pl.col("contained")))
        if rows.is_empty():
            continue
        yield _marked(rows, chain, warm_up_seconds)
        last = rows.row(-1, named=True)
        chain = _Chain(last["last_id"], last["is_snapshot"], max(last["contained"], chain.snapshot_id))


def _marked(rows: pl.DataFrame, chain: _Chain, warm_up_seconds: int | None) -> pl.DataFrame:
    before = pl.col("last_id").shift(1, fill_value=chain.last_id)
    after_snapshot = pl.col("is_snapshot").shift(1, fill_value=chain.is_snapshot)
    is_new = (pl.col("last_id") != before) | (pl.col("is_snapshot") != after_snapshot)
    numbered = pl.col("previous_id").fill_null(-1) >= 0
    follows = (
        pl.when(after_snapshot)
        .then(pl.col("first_id") <= before + 1)
        .when(numbered)
        .then(pl.col("previous_id") == before)
        .otherwise(pl.col("first_id") == before + 1)
    )
    micros = pl.col("timestamp").dt.epoch("us")
    relearned = pl.lit(NEVER) if warm_up_seconds is None else micros + warm_up_seconds * 1_000_000
    return rows.with_columns(
        reset=is_new & (pl.col("is_snapshot") | ~follows),
        known_from=pl.when("is_snapshot").then(micros).otherwise(relearned),
    ).select(CHANGES_SCHEMA.keys())
