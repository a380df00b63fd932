"""Numbered updates are linked into a chain, and a break is not papered over."""

from collections.abc import Sequence

import polars as pl
import pytest

from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.market.book_rebuild import NEVER
from archetype_dagster.market.depth_sequence import linked_changes

SECOND = 1_000_000
Event = tuple[int, int, int, int | None, bool]
SPOT: list[Event] = [(1, 10, 10, None, True), (2, 9, 12, None, False), (3, 13, 13, None, False)]
SCHEMA = {
    "timestamp": TIMESTAMP,
    "first_id": pl.Int64(),
    "last_id": pl.Int64(),
    "previous_id": pl.Int64(),
    "is_snapshot": pl.Boolean(),
}


def _linked(
    events: Sequence[Event], *, split: int = 0, warm_up_seconds: int | None = None
) -> list[tuple[int, bool, int]]:
    """(second, reset, seconds until known or -1) of each row; every event has two rows."""
    rows = [(second * SECOND, *rest) for second, *rest in events for _ in range(2)]
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    table = table.with_columns(is_bid=pl.lit(value=True), price=pl.lit(1.0), size=pl.lit(1.0))
    frames = [table.head(split), table.tail(table.height - split)] if split else [table]
    made = pl.concat(linked_changes(iter(frames), warm_up_seconds=warm_up_seconds))
    return [
        (row["timestamp"].second, row["reset"], -1 if row["known_from"] == NEVER else row["known_from"] // SECOND)
        for row in made.iter_rows(named=True)
        if row["reset"] or row["known_from"]
    ]


def _resets(events: Sequence[Event], *, split: int = 0, warm_up_seconds: int | None = None) -> list[tuple[int, int]]:
    linked = _linked(events, split=split, warm_up_seconds=warm_up_seconds)
    return [(second, known) for second, reset, known in linked if reset]


@pytest.mark.parametrize("split", range(6))
def test_a_snapshot_and_the_updates_after_it_are_one_chain_however_they_are_split(split: int) -> None:
    assert _resets(SPOT, split=split) == [(1, 1)]
    assert len(_linked(SPOT, split=split)) == 6


@pytest.mark.parametrize("split", range(8))
def test_a_missing_number_empties_the_book_until_the_next_snapshot(split: int) -> None:
    broken = [*SPOT, (4, 15, 15, None, False), (5, 16, 16, None, False), (6, 20, 20, None, True)]
    assert _resets(broken, split=split) == [(1, 1), (4, -1), (6, 6)]


def test_a_break_mends_itself_after_the_warm_up_where_one_is_given() -> None:
    assert _resets([*SPOT[1:], (9, 20, 20, None, False)], warm_up_seconds=30) == [(2, 32), (9, 39)]


def test_updates_with_a_previous_number_are_linked_by_it() -> None:
    futures: list[Event] = [(1, 10, 10, -1, True), (2, 8, 15, 7, False), (3, 18, 20, 15, False), (4, 21, 22, 19, False)]
    assert _resets(futures) == [(1, 1), (4, -1)]


@pytest.mark.parametrize("split", range(5))
def test_updates_that_a_snapshot_contains_are_left_out(split: int) -> None:
    events: list[Event] = [(1, 10, 10, None, True), (2, 8, 9, None, False), (3, 9, 11, None, False)]
    assert [second for second, *_ in _linked(events, split=split)] == [1, 1, 3, 3]
    assert _resets(events, split=split) == [(1, 1)]


def test_a_snapshot_that_leaves_numbers_out_before_the_next_update_does_not_link() -> None:
    assert _resets([(1, 10, 10, None, True), (2, 12, 13, None, False)]) == [(1, 1), (2, -1)]
