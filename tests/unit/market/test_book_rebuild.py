"""Rebuilt books equal those kept change by change."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import book_rebuild
from archetype_dagster.market.bars import book_columns
from archetype_dagster.market.book_rebuild import CHANGES_SCHEMA, NEVER, rebuild_books

START = 1_700_000_040_000_000
SECOND = 1_000_000
Change = tuple[int, bool, float | None, float | None, bool, int]


def _frames(changes: Sequence[Change], sizes: Sequence[int]) -> Iterator[pl.DataFrame]:
    columns = list(zip(*changes, strict=True))
    values = dict(zip(CHANGES_SCHEMA, columns, strict=True))
    times = pl.Series(values["timestamp"], dtype=pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    table = pl.DataFrame({**values, "timestamp": times}, schema=CHANGES_SCHEMA)
    start = 0
    for size in [*sizes, len(changes)]:
        yield table[start : start + size]
        start += size


def _kept(changes: Sequence[Change], levels: int, seconds: int) -> list[tuple[object, ...]]:
    """The books by definition: one dictionary, one change at a time."""
    book: dict[tuple[bool, float], float] = {}
    known_from, made = NEVER, {}
    for time, is_bid, price, size, reset, from_time in changes:
        if reset:
            book, known_from = {}, from_time
        if price is not None and size is not None:
            book[is_bid, price] = size
        row: list[object] = []
        sides = [
            sorted((p, s) for (b, p), s in book.items() if b == bid and s > 0)[:: -1 if bid else 1]
            for bid in (True, False)
        ]
        for level in range(levels):
            for side in sides:
                row += side[level] if level < len(side) else (None, None)
        interval = -(-time // (seconds * SECOND))
        made[interval] = (time, *row) if time >= known_from else None
    return [entry for entry in made.values() if entry is not None]


change = st.tuples(
    st.integers(0, 2 * SECOND),
    st.booleans(),
    st.sampled_from([None, 99.0, 99.5, 100.0, 100.5, 101.0]),
    st.sampled_from([0.0, 0.0, 1.0, 2.5]),
    st.sampled_from([False] * 7 + [True]),
    st.sampled_from([0, 3 * SECOND, NEVER]),
)


@settings(deadline=None, max_examples=150)
@given(
    raw=st.lists(change, min_size=1, max_size=50),
    sizes=st.lists(st.integers(0, 20), max_size=5),
    levels=st.integers(1, 3),
    seconds=st.integers(1, 5),
    cells=st.sampled_from([1, 100, 4_000_000]),
)
def test_books_equal_those_kept_change_by_change(
    raw: list[Change], sizes: list[int], levels: int, seconds: int, cells: int
) -> None:
    time, changes = START, []
    for step, is_bid, price, size, reset, wait in [(0, True, 99.0, 1.0, True, 0), *raw]:
        time += step
        whole = size if price is not None else None
        changes.append((time, is_bid, price, whole, reset, NEVER if wait == NEVER else time + wait))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book_rebuild, "_MATRIX_CELLS", cells)
        try:
            books = pl.concat(rebuild_books(_frames(changes, sizes), levels=levels, interval_seconds=seconds))
        except MarketDataError:
            assert not _kept(changes, levels, seconds)
            return
    assert books.columns == ["timestamp", *book_columns(levels)]
    rows = books.with_columns(pl.col("timestamp").dt.epoch("us")).rows()
    assert rows == _kept(changes, levels, seconds)


def test_a_change_on_an_intervals_end_belongs_to_it_and_a_later_one_does_not() -> None:
    changes: list[Change] = [
        (START, True, 99.0, 1.0, True, START),
        (START + 60 * SECOND, True, 99.0, 2.0, False, NEVER),
        (START + 60 * SECOND + 1, True, 99.0, 3.0, False, NEVER),
    ]
    books = pl.concat(rebuild_books(_frames(changes, []), levels=1, interval_seconds=60))
    assert START % (60 * SECOND) == 0
    assert books["bid1_size"].to_list() == [1.0, 2.0, 3.0]
    assert books["timestamp"][1] == datetime.fromtimestamp(START / SECOND + 60, UTC)


def test_changes_without_a_snapshot_are_refused() -> None:
    changes: list[Change] = [(START, True, 99.0, 1.0, False, NEVER)]
    with pytest.raises(MarketDataError, match="no book is ever known"):
        list(rebuild_books(_frames(changes, []), levels=1, interval_seconds=60))
