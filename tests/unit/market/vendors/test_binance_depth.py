"""Binance's depth files give books: bands at their mean price, and snapshots with updates as one chain."""

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


def test_each_percent_band_is_a_level_at_its_mean_price(shared_data: Path) -> None:
    books = _books(
        "binance-book-depth", shared_data / "vendor/binance_archive_um_bookDepth_BTCUSDT-2025-05-19_excerpt.csv"
    )
    assert dict(books.schema) == books_schema(5)
    assert books["timestamp"].to_list() == [datetime(2025, 5, 19, 11, 7, 31, tzinfo=UTC)]
    book = books.row(0, named=True)
    assert book["bid1_size"] == 2294.324
    assert book["bid1_price"] == pytest.approx(191369991.2178 / 2294.324, rel=1e-15)
    assert book["ask2_size"] == pytest.approx(3485.141 - 2097.41, rel=1e-12)
    assert book["ask2_price"] == pytest.approx((294629128.4708 - 176607765.2095) / (3485.141 - 2097.41), rel=1e-12)
    for side, sign in (("bid", -1), ("ask", 1)):
        sizes = [book[f"{side}{level}_size"] for level in range(1, 6)]
        money = [book[f"{side}{level}_price"] * size for level, size in enumerate(sizes, start=1)]
        assert sum(sizes) == pytest.approx({"bid": 7885.275, "ask": 6491.515}[side], rel=1e-12)
        assert sum(money) == pytest.approx({"bid": 647368074.3692, "ask": 555012399.2844}[side], rel=1e-12)
        prices = [sign * book[f"{side}{level}_price"] for level in range(1, 6)]
        assert prices == sorted(prices)


def test_a_band_without_depth_is_no_level(tmp_path: Path) -> None:
    rows = [(-2, 3, 290), (-1, 1, 99), (1, 0, 0), (2, 2, 204)]
    (tmp_path / "d.csv").write_text(BANDS + "".join(f"2025-05-19 11:07:31,{p},{d},{n}\n" for p, d, n in rows))
    assert _books("binance-book-depth", tmp_path / "d.csv").row(0)[1:] == (
        *(99.0, 1.0, 102.0, 2.0),
        *(95.5, 2.0, None, None),
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("11:07:31,-2,1,99\n2025-05-19 11:07:31,-1,2,198\n", "depth must grow with the distance"),
        ("11:07:31,-1,1,99\n2025-05-19 11:07:31,-1,1,99\n", "depth must grow with the distance, one row each"),
        ("11:07:31,0,1,99\n", "row 0, field percentage: percentage must be finite and not zero"),
        ("11:07:31,1,-1,99\n", "row 0, field depth: depth must be finite and not negative"),
        ("11:07,1,1,99\n", "row 0, field timestamp: time must be written YYYY-MM-DD hh:mm:ss"),
        ("11:07:31,1,1,99\n2025-05-19 11:08:01,1,1,99\n2025-05-19 11:08:01,2,2,198\n", "a later one has more"),
    ],
)
def test_depths_that_are_no_book_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(BANDS + "2025-05-19 " + rows)
    with pytest.raises(MarketDataError, match=message):
        _books("binance-book-depth", tmp_path / "d.csv")


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
