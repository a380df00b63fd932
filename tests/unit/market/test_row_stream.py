"""Rows of many blocks come out in order of time, lazily, or a file is named that cannot be put in order."""

from collections.abc import Iterator

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import RowBlock
from archetype_dagster.market.row_stream import in_order, scan_frames

SCHEMA = {"t": pl.Int64(), "id": pl.Int64(), "place": pl.Int64()}


def _blocks(times: list[int], ids: list[int], sizes: list[int]) -> Iterator[RowBlock]:
    rows = pl.DataFrame({"t": times, "id": ids}, schema={"t": pl.Int64, "id": pl.Int64}).with_row_index("place")
    start = 0
    for size in [*sizes, len(times)]:
        yield RowBlock(rows[start : start + size].select("t", "id", pl.col("place").cast(pl.Int64)), "f", start)
        start += size


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.integers(0, 3), max_size=60),
    ids=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    shuffled=st.randoms(use_true_random=False),
    sizes=st.lists(st.integers(0, 9), max_size=9),
)
def test_rows_a_little_out_of_order_come_out_as_one_stable_sort(
    steps: list[int], ids: list[int], shuffled: object, sizes: list[int]
) -> None:
    times = [sum(steps[: index + 1]) for index in range(len(steps))]
    for start in range(0, len(times), 3):
        part = times[start : start + 3]
        shuffled.shuffle(part)  # type: ignore[attr-defined]
        times[start : start + 3] = part
    frames = list(in_order(_blocks(times, ids[: len(times)], sizes), by=("t", "id"), held_rows=4))
    expected = sorted(zip(times, ids, range(len(times)), strict=False))
    assert [row for frame in frames for row in frame.iter_rows()] == expected


def test_few_rows_are_sorted_whole_however_disordered() -> None:
    frames = list(in_order(_blocks([9, 1, 5, 5], [0, 0, 2, 1], [1, 1]), by=("t", "id")))
    assert pl.concat(frames).select("t", "id").rows() == [(1, 0), (5, 1), (5, 2), (9, 0)]


def test_rows_too_far_out_of_order_are_refused_with_their_file() -> None:
    with pytest.raises(MarketDataError, match="file f, field t: rows must be in order of time to within 2 rows"):
        list(in_order(_blocks([*range(10), 0], [0] * 11, [10]), by=("t",), held_rows=2))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_scan_can_be_filtered_projected_cut_and_collected_again(engine: str) -> None:
    made = []

    def frames() -> Iterator[pl.DataFrame]:
        for start in range(0, 9, 3):
            made.append(start)
            yield pl.DataFrame({"t": range(start, start + 3), "id": 0, "place": 1}, schema=SCHEMA)

    lazy = scan_frames(SCHEMA, frames)
    assert made == []
    picked = lazy.filter(pl.col("t") > 3).select("t").collect(engine=engine)  # type: ignore[call-overload]
    assert picked["t"].to_list() == [4, 5, 6, 7, 8]
    assert lazy.head(2).collect(engine=engine)["t"].to_list() == [0, 1]  # type: ignore[call-overload]


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_an_error_while_reading_reaches_whoever_collects(engine: str) -> None:
    def frames() -> Iterator[pl.DataFrame]:
        yield pl.DataFrame({"t": [1], "id": [0], "place": [1]}, schema=SCHEMA)
        raise MarketDataError("broken", file="f", row=7)

    with pytest.raises(MarketDataError, match="file f, row 7: broken"):
        scan_frames(SCHEMA, frames).collect(engine=engine)  # type: ignore[call-overload]
