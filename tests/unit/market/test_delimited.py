"""Tables are read with or without a header row, times by their size, and each fault is told with its place."""

from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import files
from archetype_dagster.market.delimited import Layout, clock_times, first_time, read_blocks
from archetype_dagster.market.files import DataFile

LAYOUT = Layout(
    "test rows",
    {"time": pl.Int64(), "price": pl.Float64(), "maker": pl.Boolean()},
    "time",
    [("time", "note", "price", "maker")],
    {"px": "price"},
)
TIME = 1_700_000_000_000


def _file(folder: Path, text: str, name: str = "a.csv") -> DataFile:
    (folder / name).write_bytes(text.encode())
    return files.find_files(folder / name)[0]


def _rows(file: DataFile) -> pl.DataFrame:
    return pl.concat([block.rows for block in read_blocks(file, LAYOUT)])


@pytest.mark.parametrize(
    "text",
    [
        f"{TIME},x,1.5,True\n{TIME + 1},y,,false\n",
        f"time,note,price,maker\n{TIME},x,1.5,true\n{TIME + 1},y,,false\n",
        f"px,maker,time,more,columns\n1.5,true,{TIME},,\n,false,{TIME + 1},,",
        f"\ufefftime,note,price,maker\r\n{TIME},x,1.5,true\r\n{TIME + 1},y,,false\r\n\r\n",
        f"\n{TIME},x,1.5,true\n\n{TIME + 1},y,,false\n\n",
    ],
    ids=["no header", "header", "other order and names", "byte order mark and CRLF", "blank lines"],
)
def test_columns_are_found_by_name_or_by_place(tmp_path: Path, text: str) -> None:
    rows = _rows(_file(tmp_path, text))
    assert rows.select("time", "price", "maker").rows() == [(TIME, 1.5, True), (TIME + 1, None, False)]


def test_blocks_number_their_rows_through_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, "time,note,price,maker\n" + f"{TIME},x,1,true\n" * 50)
    monkeypatch.setattr(files.DataFile.blocks, "__defaults__", (100,))
    starts = [block.first_row for block in read_blocks(file, LAYOUT)]
    assert len(starts) > 5
    assert sum(block.rows.height for block in read_blocks(file, LAYOUT)) == 50
    assert starts == sorted(set(starts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{TIME},x,1,true\n{TIME},x,abc,true", "row 1, field price: cell must be of type Float64, got 'abc'"),
        (f"{TIME},x,1,true\n{TIME},x,1,maybe", "row 1, field maker: cell must be of type Boolean, got 'maybe'"),
        (f"{TIME},x,1,true\n{TIME},x,1", "row 1: a row must have 4 cells, got 3"),
        (f"{TIME},x,1,true\n{TIME},x,1,true,5\n{TIME},x,1\n", "row 1: a row must have 4 cells, got 5"),
        (f"{TIME},x,1,true\n{TIME},x,1,true,5", "row 1: a row must have 4 cells, got 5"),
        (f"{TIME},x,1", "test rows without a header row must have 4 columns, got 3"),
        ("time,note,maker\n", "field price: test rows must have this column once; there are time, note, maker"),
        ("time,price,px,maker\n", "field price: test rows must have this column once"),
        ("", "file is empty"),
    ],
)
def test_a_fault_is_told_with_file_row_field_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MarketDataError) as caught:
        _rows(_file(tmp_path, text))
    assert str(caught.value).startswith(f"file {tmp_path / 'a.csv'}")
    assert message in str(caught.value)


def test_milli_micro_and_nanoseconds_are_told_apart_row_by_row() -> None:
    times = clock_times(pl.Series("t", [1735689599999, 1735689600000000, 1735689600000000001]))
    assert times.dt.to_string("%Y-%m-%dT%H:%M:%S%.6f").to_list() == [
        "2024-12-31T23:59:59.999000",
        "2025-01-01T00:00:00.000000",
        "2025-01-01T00:00:00.000001",
    ]


@pytest.mark.parametrize("value", [1735689600, 10**19 - 10**16, -5, None])
def test_a_date_outside_the_expected_span_is_refused(value: int | None) -> None:
    with pytest.raises(MarketDataError, match="row 1, field t"):
        clock_times(pl.Series("t", [1735689599999, value], dtype=pl.Int128).cast(pl.Int64, strict=False))


def test_times_in_words_are_utc_and_nothing_else_is_a_time() -> None:
    assert str(clock_times(pl.Series("t", ["2025-05-19 11:07:31"]))[0]) == "2025-05-19 11:07:31+00:00"
    with pytest.raises(MarketDataError, match="YYYY-MM-DD hh:mm:ss"):
        clock_times(pl.Series("t", ["19.05.2025"]))


def test_the_first_time_of_a_file_is_that_of_its_first_row(tmp_path: Path) -> None:
    assert first_time(_file(tmp_path, f"time,note,price,maker\n{TIME},x,1,true\n"), LAYOUT) == TIME * 1000
    assert first_time(_file(tmp_path, f"{TIME},x,1,true"), LAYOUT) == TIME * 1000
    assert first_time(_file(tmp_path, "time,note,price,maker\n"), LAYOUT) is None
