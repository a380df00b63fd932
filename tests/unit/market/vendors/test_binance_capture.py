"""A raw websocket capture gives the trades in it and, once its levels are learned, the true book."""

import gzip
import json
from bisect import bisect_left
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.raw import TRADES_SCHEMA, books_schema
from archetype_dagster.market.vendors.binance_capture import BinanceCapture
from archetype_dagster.settings import Settings

BTC = Settings().pair("BTC")
CAPTURE = "vendor/binance_ws_capture_spot_btcusdt_2024-08-08.gz"
RECORDED = "book/binance_spot_btcusdt_book_1s_20lvl_2024-08-08.parquet"
TIME = 1_723_161_600_000_000_000


def _books(path: Path, **options: int) -> pl.DataFrame:
    books = BinanceCapture(**options).read(path, BTC).books  # type: ignore[arg-type]
    assert books is not None
    return books.collect(engine="streaming")


def _trades(path: Path) -> pl.DataFrame:
    trades = BinanceCapture().read(path, BTC).trades
    assert trades is not None
    return trades.collect(engine="streaming")


def _depth(time: int, first: int, last: int, bids: list[list[str]], *, wrapped: bool = True) -> str:
    event = {"e": "depthUpdate", "E": 1, "s": "BTCUSDT", "U": first, "u": last, "b": bids, "a": [["101", "1"]]}
    message = {"stream": "btcusdt@depth", "data": event} if wrapped else event
    return f"{time} {json.dumps(message, separators=(',', ':'))}\n"


def test_trades_of_the_capture_are_known_when_received(shared_data: Path) -> None:
    trades = _trades(shared_data / CAPTURE)
    assert dict(trades.schema) == TRADES_SCHEMA
    assert trades.height == 10147
    assert trades.row(0) == (datetime(2024, 8, 9, 0, 0, 0, 164379, UTC), 61685.99, 0.00017, False, 3735693016)
    assert trades["timestamp"][-1] == datetime(2024, 8, 9, 0, 5, 4, 525431, UTC)
    assert trades["timestamp"].is_sorted()


def test_books_of_the_capture_begin_after_the_warm_up(shared_data: Path) -> None:
    books = _books(shared_data / CAPTURE)
    assert dict(books.schema) == books_schema(25)
    assert books.height == 4
    assert books["timestamp"][0] == datetime(2024, 8, 9, 0, 2, 59, 980066, UTC)
    assert books.row(0)[1:5] == (61641.99, 6.04986, 61642.0, 0.08067)
    assert books["timestamp"][-1] == datetime(2024, 8, 9, 0, 5, 4, 535093, UTC)


def test_the_rebuilt_book_is_the_one_that_was_recorded(shared_data: Path, tmp_path: Path) -> None:
    """Each message's clock is set to the recorded book it is part of, so that the two can be laid side by side."""
    recorded = pl.read_parquet(shared_data / RECORDED)
    times = recorded["ts_ms"].to_list()
    with gzip.open(shared_data / CAPTURE) as lines, (tmp_path / "c.txt").open("wb") as out:
        for line in lines:
            clock, _, message = line.partition(b" ")
            if b"depthUpdate" in message:
                place = bisect_left(times, int(clock) // 1_000_000)
                out.write(b"%d %s" % (TIME + place * 10**9, message))
    books = _books(tmp_path / "c.txt", levels=20, interval_seconds=1)
    place = books["timestamp"].dt.epoch("ms") - TIME // 1_000_000
    there = books.filter(place // 1000 < recorded.height)
    expected = recorded[(place // 1000).head(there.height).to_list()].drop("ts_ms")
    assert there.height > 150
    assert there.drop("timestamp").equals(expected.select(there.columns[1:]))


def test_a_missing_number_empties_the_book_and_starts_the_warm_up_again(tmp_path: Path) -> None:
    second = 10**9
    lines = [
        _depth(TIME + 1, 1, 2, [["99", "1"]]),
        _depth(TIME + 11 * second, 3, 4, [["98", "2"]], wrapped=False),
        _depth(TIME + 12 * second, 6, 7, [["97", "3"]]),
        _depth(TIME + 23 * second, 8, 9, []),
    ]
    (tmp_path / "c.txt").write_text("".join(lines))
    books = _books(tmp_path / "c.txt", levels=2, interval_seconds=1, warm_up_seconds=10)
    assert [row[1:] for row in books.iter_rows()] == [
        (99.0, 1.0, 101.0, 1.0, 98.0, 2.0, None, None),
        (97.0, 3.0, 101.0, 1.0, None, None, None, None),
    ]


def test_a_capture_too_short_to_learn_the_book_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text(_depth(TIME, 1, 2, [["99", "1"]]))
    with pytest.raises(MarketDataError, match=r"c\.txt: no book is ever known"):
        _books(tmp_path / "c.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no clock {}", "row 1, field line: a line must be nanoseconds, a space and a JSON object"),
        (f'{TIME} {{"e":"depthUpdate","s":}}', "row 1: a message must be JSON"),
        (_depth(TIME, 3, 4, [["0", "1"]]).strip(), "row 1, field price: price must be finite and positive"),
        (_depth(TIME, 3, 4, [["x", "1"]]).strip(), "row 1, field price: price and size must both be there"),
    ],
)
def test_a_broken_line_is_told_with_its_row(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "c.txt").write_text(_depth(TIME, 1, 2, []) + line + "\n")
    with pytest.raises(MarketDataError, match=message):
        _books(tmp_path / "c.txt")
