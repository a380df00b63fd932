"""The book of a bar: the last well-formed snapshot at or before its end, and the mids seen on the way."""

from __future__ import annotations

from typing import Final

import polars as pl

from archetype_dagster.market.bars import book_columns, num_book_levels
from archetype_dagster.market.ingestion import FaultCount
from archetype_dagster.market.raw_faults import crossed, empty_side, locked, malformed_book, zero_size
from archetype_dagster.market.record_batches import BAR_END, RECORD_TIME, BarPart, refusable, summarise_bars, time_at
from archetype_dagster.settings import IngestionSettings

BOOK_TIME: Final = "book_time"
MIDS: Final = {"open": "mid_open", "high": "mid_high", "low": "mid_low", "close": "mid_close"}


def books_of_bars(books: pl.LazyFrame, *, levels: int, bar_minutes: int, policies: IngestionSettings) -> BarPart:
    """The last well-formed snapshot inside each bar, its very end included.

    Args:
        books: frame of `raw.books_schema`.
        levels: the most levels kept.
        bar_minutes: length of a bar.
        policies: for malformed and repeated snapshots.

    Returns:
        rows: `timestamp`, `book_time`, the book's columns and `mid_open`, `mid_high`, `mid_low`,
        `mid_close` over the bar's snapshots (null where none had two sides).

    Raises:
        MarketDataError: fewer than five levels, or a fault that a policy refuses.
    """
    levels = min(levels, num_book_levels(pl.DataFrame(schema=books.collect_schema())))
    columns = book_columns(levels)
    as_it_came = {
        "locked_book": locked(),
        "crossed_book": crossed(),
        "one_sided_book": empty_side(),
        "zero_size": zero_size(levels),
    }
    time, malformed = pl.col(RECORD_TIME), pl.col("malformed")

    def summarise(rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(malformed_book(levels).alias("malformed"))
        counted = rows.group_by(BAR_END, maintain_order=True).agg(
            time.first().alias("first"),
            time.last().alias("last"),
            pl.len().alias("records"),
            malformed.sum().alias("malformed"),
            time.filter(malformed).first().alias("malformed_at"),
            time.is_duplicated().sum().alias("repeated") - time.filter(time.is_duplicated()).n_unique(),
            time.filter(time.is_duplicated()).first().alias("repeated_at"),
            *[(fault & ~malformed).sum().alias(name) for name, fault in as_it_came.items()],
        )
        mid = pl.col("mid").drop_nulls()
        seen = rows.filter(~malformed).with_columns(mid=(pl.col("bid1_price") + pl.col("ask1_price")) / 2)
        last = seen.group_by(BAR_END, maintain_order=True).agg(
            time.last().alias(BOOK_TIME),
            pl.col(columns).last(),
            mid.first().alias(MIDS["open"]),
            mid.max().alias(MIDS["high"]),
            mid.min().alias(MIDS["low"]),
            mid.last().alias(MIDS["close"]),
        )
        return counted.join(last, on=BAR_END, how="left", maintain_order="left")

    table = summarise_bars(
        books.select("timestamp", *columns), summarise, bar_minutes=bar_minutes, includes_end=True, what="books"
    )
    total = table.select(pl.col("records", "malformed", "repeated", *as_it_came).sum()).row(0, named=True)
    return BarPart(
        rows=table.filter(pl.col(BOOK_TIME).is_not_null()).select(BAR_END, BOOK_TIME, *columns, *MIDS.values()),
        records=total["records"],
        first=time_at(table["first"], 0),
        last=time_at(table["last"], -1),
        faults=(
            refusable(
                "malformed_book", "snapshots", total["malformed"], table["malformed_at"], policies.malformed_book
            ),
            refusable(
                "repeated_record", "snapshots", total["repeated"], table["repeated_at"], policies.repeated_record
            ),
            *[FaultCount(name, "snapshots", total[name], None) for name in as_it_came],
        ),
    )
