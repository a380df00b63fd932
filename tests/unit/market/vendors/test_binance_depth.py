"""Binance's depth files: snapshots with updates are books, as one chain; bands of percents are none."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.raw import books_schema
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.market.vendors.binance_depth import BinanceDepth
from archetype_dagster.settings import Settings

BTC = Settings().pair("BTC")
BANDS = "timestamp,percentage,depth,notional\n"
UPDATES = "symbol,timestamp,first_update_id,last_update_id,side,update_type,price,qty,pu\n"
MINUTE = 60_000
START = 1_667_346_600_000


def _books(source: str, path: Path) -> pl.DataFrame:
    books = SOURCES[source].read(path, BTC).books
    assert books is not None
    return books.collect(engine="streaming")


def _updates(path: Path, rows: list[tuple[object, ...]]) -> Path:
    path.write_text(UPDATES + "".join("BTCUSDT," + ",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BANDS + "2025-05-19 11:07:31,-1,2,198\n", r"d\.csv: bookDepth tells how much lies .* is no book to trade on"),
        ("open_time,open\n1,2\n", "Binance bookDepth without a header row must have 4 columns, got 2"),
        ("timestamp,percentage\n", "field depth: Binance bookDepth must have this column once"),
    ],
)
def test_depth_within_percents_of_the_mid_is_no_book(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(MarketDataError, match=message):
        SOURCES["binance-book-depth"].read(tmp_path / "d.csv", BTC)


def test_a_real_snapshot_is_a_book_and_updates_far_after_it_are_not(shared_data: Path) -> None:
    """The two vendor files are excerpts 10 minutes apart: the numbers between are missing, so is the book."""
    books = _books("binance-depth", shared_data / "vendor/binance_spot_depth_*.csv")
    assert dict(books.schema) == books_schema(25)
    assert books["timestamp"].to_list() == [datetime(2022, 11, 1, 23, 49, 39, 146000, UTC)]
    book = books.row(0, named=True)
    assert [book[name] for name in ("bid1_price", "bid1_size", "bid2_price", "bid2_size")] == [
        *(20377.0, 1.77),
        *(20376.9, 0.001),
    ]
    assert book["bid25_size"] is not None
    assert book["ask1_price"] is None


def test_updates_without_a_snapshot_are_refused(shared_data: Path) -> None:
    with pytest.raises(MarketDataError, match=r"update_BTCUSDT\.csv: no book is ever known: no snapshot"):
        _books("binance-depth", shared_data / "vendor/binance_spot_depth_update_BTCUSDT.csv")


def test_updates_continue_a_snapshot_until_a_number_is_missing(tmp_path: Path) -> None:
    snapshot = [(START + 1, 10, 10, "b", "snap", 99, 1, -1), (START + 1, 10, 10, "a", "snap", 101, 1, -1)]
    updates = [
        (START + MINUTE + 1, 9, 12, "b", "set", 99, 5, 8),
        (START + MINUTE + 2, 13, 14, "a", "set", 101, 0, 12),
        (START + MINUTE + 2, 13, 14, "a", "set", 102, 3, 12),
        (START + 2 * MINUTE + 1, 20, 21, "b", "set", 98, 7, 19),
        (START + 3 * MINUTE + 1, 22, 23, "b", "set", 98, 8, 21),
    ]
    _updates(tmp_path / "update.csv", updates)
    _updates(tmp_path / "snap.csv", snapshot)
    books = BinanceDepth(levels=1).read(tmp_path, BTC).books
    assert books is not None
    rows = [row[1:] for row in books.collect().iter_rows()]
    assert rows == [(99.0, 1.0, 101.0, 1.0), (99.0, 5.0, 102.0, 3.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((START, 1, 1, "b", "snap", 0, 1, -1), "row 0, field price: price must be finite and positive"),
        ((START, 1, 1, "b", "snap", "", 1, -1), "row 0, field price: price must not be null"),
        ((START, 1, 1, "b", "snap", 9, -1, -1), "row 0, field size: size must be finite and not negative"),
        ((START, 1, 1, "x", "snap", 9, 1, -1), "row 0, field side: side must be a or b, got side=x"),
        ((START, 1, 1, "a", "what", 9, 1, -1), "row 0, field update_type: must be snap or set"),
    ],
)
def test_a_row_that_no_book_can_take_is_refused(tmp_path: Path, row: tuple[object, ...], message: str) -> None:
    with pytest.raises(MarketDataError, match=message):
        _books("binance-depth", _updates(tmp_path / "d.csv", [row]))


def test_another_symbol_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(UPDATES + f"ETHUSDT,{START},1,1,b,snap,9,1,-1\n")
    with pytest.raises(MarketDataError, match="row 0, field symbol: rows must be of BTCUSDT, got symbol=ETHUSDT"):
        _books("binance-depth", tmp_path / "d.csv")
