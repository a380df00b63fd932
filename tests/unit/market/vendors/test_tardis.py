"""Tardis files give the books and trades that stand in them, at the time they arrived."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.raw import TRADES_SCHEMA, books_schema
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.market.vendors.tardis import TardisIncrementalBook
from archetype_dagster.settings import PairSettings, Settings

BTC = Settings().pair("BTC")
TRADES_HEADER = "exchange,symbol,timestamp,local_timestamp,id,side,price,amount\n"
CHANGES_HEADER = "exchange,symbol,timestamp,local_timestamp,is_snapshot,side,price,amount\n"
TIME = 1_700_000_000_000_000


def _books(source: str, path: Path, pair: PairSettings = BTC) -> pl.DataFrame:
    books = SOURCES[source].read(path, pair).books
    assert books is not None
    return books.collect(engine="streaming")


def _trades(path: Path, pair: PairSettings = BTC) -> pl.DataFrame:
    trades = SOURCES["tardis-trades"].read(path, pair).trades
    assert trades is not None
    return trades.collect(engine="streaming")


def _write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("levels", "last", "deepest"),
    [(5, datetime(2020, 9, 1, 0, 0, 4, 289427, UTC), 11655.68), (25, datetime(2020, 9, 1, 0, 0, 4, 9468, UTC), None)],
)
def test_book_snapshots_hold_every_level_at_its_arrival(
    shared_data: Path, levels: int, last: datetime, deepest: float | None
) -> None:
    books = _books(
        "tardis-book-snapshot", shared_data / "vendor" / f"tardis_binance-futures_book_snapshot_{levels}_BTCUSDT.csv"
    )
    assert dict(books.schema) == books_schema(levels)
    assert books.height == 10
    first = books.row(0, named=True)
    assert first["timestamp"] == datetime(2020, 9, 1, 0, 0, 3, 810979, UTC)
    assert books["timestamp"][-1] == last
    touch = [first[name] for name in ("ask1_price", "ask1_size", "bid1_price", "bid1_size")]
    assert touch == [11657.08, 1.714, 11657.07, 10.896] if levels == 5 else [11657.08, 1.475, 11657.07, 10.896]
    assert [first["ask2_price"], first["bid5_price"], first["bid5_size"]] == [11657.54, 11655.68, 0.111]


def test_incremental_updates_rebuild_the_book_that_they_describe(shared_data: Path) -> None:
    path = shared_data / "vendor" / "tardis_binance_incremental_book_L2_2019-12-01_BTCUSDT_first2050.csv"
    books = _books("tardis-incremental-book", path)
    assert dict(books.schema) == books_schema(25)
    assert books["timestamp"].to_list() == [datetime(2019, 12, 1, 0, 0, 5, 716112, UTC)]

    kept: dict[str, dict[float, float]] = {"bid": {}, "ask": {}}
    for line in path.read_text().splitlines()[1:]:
        *_, side, price, amount = line.split(",")
        kept[side][float(price)] = float(amount)
    for side, prices in kept.items():
        best = sorted((price for price, size in prices.items() if size > 0), reverse=side == "bid")[:25]
        assert [books[f"{side}{level}_price"][0] for level in range(1, 26)] == best
        assert [books[f"{side}{level}_size"][0] for level in range(1, 26)] == [prices[price] for price in best]


def test_trades_are_known_at_their_arrival_with_the_takers_side(shared_data: Path) -> None:
    trades = _trades(shared_data / "vendor" / "tardis_binance_trades_2019-12-01_BTCUSDT_first100.csv")
    assert dict(trades.schema) == TRADES_SCHEMA
    assert trades.height == 100
    assert trades.row(0) == (datetime(2019, 12, 1, 0, 0, 3, 820370, UTC), 7540.78, 0.039741, False, 211646077)
    assert trades.row(-1) == (datetime(2019, 12, 1, 0, 0, 35, 883063, UTC), 7538.74, 0.008, True, 211646176)


@pytest.mark.parametrize(
    ("source", "file", "symbol"),
    [
        ("tardis-incremental-book", "tardis_deribit_incremental_book_L2_BTC-PERPETUAL.csv", "BTC-PERPETUAL"),
        ("tardis-trades", "tardis_bitmex_trades_XBTUSD.csv", "XBTUSD"),
    ],
)
def test_another_symbol_is_refused(shared_data: Path, source: str, file: str, symbol: str) -> None:
    raw = SOURCES[source].read(shared_data / "vendor" / file, BTC)
    lazy = raw.books if raw.trades is None else raw.trades
    assert lazy is not None
    with pytest.raises(MarketDataError, match=f"{file}, field symbol: must hold rows of BTCUSDT, got {symbol}"):
        lazy.collect()


def test_amounts_in_contracts_are_refused_even_where_the_pair_fits(shared_data: Path) -> None:
    bitmex = BTC.model_copy(update={"base": "XBT", "quote": "USD"})
    with pytest.raises(MarketDataError, match="row 0, field exchange: amounts must be in base units"):
        _trades(shared_data / "vendor" / "tardis_bitmex_trades_XBTUSD.csv", bitmex)


def test_the_exchanges_clock_does_not_set_the_order(tmp_path: Path) -> None:
    """Exchange 2, 1; local 3, 4: the stream is monotone in the one clock that says when a row was known."""
    row = "binance,BTCUSDT,{},{},{},buy,100,1\n"
    path = _write(
        tmp_path,
        "t.csv",
        TRADES_HEADER + row.format(TIME + 1, TIME + 4, 8) + row.format(TIME + 2, TIME + 3, 7),
    )
    trades = _trades(path)
    assert trades["timestamp"].dt.epoch("us").to_list() == [TIME + 3, TIME + 4]
    assert trades["trade_id"].to_list() == [7, 8]


def test_trades_of_one_time_are_ordered_by_number_and_the_order_in_the_file_is_not_trusted(tmp_path: Path) -> None:
    rows = "".join(f"binance,BTCUSDT,{TIME},{TIME},{number},buy,{number},1\n" for number in (1, 100, 2, 101))
    trades = _trades(_write(tmp_path, "t.csv", TRADES_HEADER + rows))
    assert trades["trade_id"].to_list() == [1, 2, 100, 101]


def test_files_of_a_series_follow_their_rows_not_their_names(tmp_path: Path) -> None:
    for name, time in (("a", TIME + 2_000_000), ("b", TIME)):
        text = TRADES_HEADER + f"binance,BTCUSDT,{time},{time},{name == 'a':d},buy,100,1\n"
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert _trades(tmp_path)["trade_id"].to_list() == [0, 1]


def test_other_symbols_of_a_file_are_left_out_and_a_second_venue_is_refused(tmp_path: Path) -> None:
    row = "{},{}," + f"{TIME},{TIME},1,sell,100,1\n"
    mixed = _write(tmp_path, "m.csv", TRADES_HEADER + row.format("okex", "BTC-USDT") + row.format("okex", "ETH-USDT"))
    assert _trades(mixed).height == 1
    two = _write(tmp_path, "v.csv", TRADES_HEADER + row.format("okex", "BTC-USDT") + row.format("binance", "BTCUSDT"))
    with pytest.raises(MarketDataError, match="rows must be of one venue, got binance, okex"):
        _trades(two)


def test_a_missing_level_is_null_and_a_side_unknown_to_the_venue_too(tmp_path: Path) -> None:
    header = "exchange,symbol,timestamp,local_timestamp,asks[0].price,asks[0].amount,bids[0].price,bids[0].amount\n"
    book = _write(tmp_path, "b.csv", header + f"binance,BTCUSDT,{TIME},{TIME},,,100,1\n")
    assert _books("tardis-book-snapshot", book).row(0)[1:] == (100.0, 1.0, None, None)
    trade = _write(tmp_path, "t.csv", TRADES_HEADER + f"binance,BTCUSDT,{TIME},{TIME},x-1,unknown,100,1\n")
    assert _trades(trade).row(0)[1:] == (100.0, 1.0, None, None)


def test_each_snapshot_of_an_incremental_file_starts_the_book_anew(tmp_path: Path) -> None:
    row = "binance,BTCUSDT,0,{},{},{},{},{}\n"
    minute = 60_000_000
    start = TIME // minute * minute
    changes = [
        (start + 1, "false", "bid", 98, 9),
        (start + minute + 1, "true", "bid", 99, 1),
        (start + minute + 1, "true", "ask", 101, 2),
        (start + minute + 2, "false", "ask", 102, 3),
        (start + 2 * minute + 1, "true", "bid", 97, 4),
    ]
    path = _write(tmp_path, "i.csv", CHANGES_HEADER + "".join(row.format(*change) for change in changes))
    books = TardisIncrementalBook(levels=2).read(path, BTC).books
    assert books is not None
    assert [row[1:] for row in books.collect().iter_rows()] == [
        (99.0, 1.0, 101.0, 2.0, None, None, 102.0, 3.0),
        (97.0, 4.0, None, None, None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("true,bid,0,1", "row 0, field price: price must be finite and positive, got price=0.0"),
        ("true,bid,,1", "row 0, field price: price must be finite and positive, got price=None"),
        ("true,bid,100,-1", "row 0, field amount: amount must be finite and not negative, got amount=-1.0"),
        ("true,buy,100,1", "row 0, field side: side must be bid or ask, got side=buy"),
        ("false,bid,100,1", "no book is ever known: no snapshot comes before the changes"),
    ],
)
def test_a_change_that_no_book_can_take_is_refused(tmp_path: Path, row: str, message: str) -> None:
    path = _write(tmp_path, "i.csv", CHANGES_HEADER + f"binance,BTCUSDT,{TIME},{TIME},{row}\n")
    with pytest.raises(MarketDataError) as caught:
        _books("tardis-incremental-book", path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_binance_file_is_not_taken_for_a_tardis_one(shared_data: Path) -> None:
    with pytest.raises(MarketDataError, match="Tardis trades without a header row must have 8 columns, got 7"):
        _trades(shared_data / "vendor" / "binance_spot_trades_BTCUSDT_2024-01-01_first5.csv")
