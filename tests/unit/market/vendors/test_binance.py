"""Binance archive files give their candles and trades, whatever their header and unit of time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.raw import CANDLES_SCHEMA, TRADES_SCHEMA
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.settings import PairSettings, Settings

BTC, DOT = Settings().pair("BTC"), Settings().pair("DOT")
PEPE = BTC.model_copy(update={"base": "PEPE"})
ARCHIVE = "vendor/binance_archive/data"
KLINES_HEADER = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,"
    "taker_buy_volume,taker_buy_quote_volume,ignore\n"
)


def _candles(path: Path, pair: PairSettings = BTC) -> pl.DataFrame:
    candles = SOURCES["binance-klines"].read(path, pair).candles
    assert candles is not None
    return candles.collect(engine="streaming")


def _trades(source: str, path: Path, pair: PairSettings = BTC) -> pl.DataFrame:
    trades = SOURCES[source].read(path, pair).trades
    assert trades is not None
    return trades.collect(engine="streaming")


def _kline(open_time: int, close_time: int) -> str:
    return f"{open_time},1,2,0.5,1.5,10,{close_time},15,3,4,6,0\n"


@pytest.mark.parametrize(
    ("path", "pair", "rows", "first", "last", "minutes"),
    [
        (
            f"{ARCHIVE}/spot/daily/klines/BTCUSDT/1m",
            BTC,
            2880,
            (datetime(2020, 1, 1, tzinfo=UTC), 7195.24, 7196.25, 7183.14, 7186.68, 51.642812, 19.59823),
            datetime(2020, 1, 3, tzinfo=UTC),
            1,
        ),
        (
            f"{ARCHIVE}/spot/daily/klines/BTCUSDT/1h",
            BTC,
            24,
            (datetime(2024, 10, 28, tzinfo=UTC), 68021.69, 68116.78, 67839.9, 67859.91, 555.35912, 281.12098),
            datetime(2024, 10, 29, tzinfo=UTC),
            60,
        ),
        (
            f"{ARCHIVE}/futures/um/daily/klines/BTCUSDT/1h/BTCUSDT-1h-2024-10-28.zip",
            BTC,
            24,
            (datetime(2024, 10, 28, tzinfo=UTC), 67992.7, 68094.6, 67804.7, 67835.2, 5179.117, 2415.052),
            datetime(2024, 10, 29, tzinfo=UTC),
            60,
        ),
        (
            f"{ARCHIVE}/futures/um/monthly",
            DOT,
            43200,
            (datetime(2024, 11, 1, tzinfo=UTC), 3.958, 3.959, 3.956, 3.958, 45103.8, 26031.0),
            datetime(2024, 12, 1, tzinfo=UTC),
            1,
        ),
        (
            "vendor/binance_archive_spot_klines_BTCUSDT-1h-2023-*.csv",
            BTC,
            3623,
            (datetime(2023, 1, 1, tzinfo=UTC), 16541.77, 16545.7, 16508.39, 16529.67, 4364.8357, 2179.94772),
            datetime(2023, 6, 1, tzinfo=UTC),
            60,
        ),
    ],
    ids=["spot 1m zips", "spot 1h zip", "um 1h zip", "um 1m month", "spot 1h csv"],
)
def test_klines_cover_the_time_they_say(
    shared_data: Path,
    path: str,
    pair: PairSettings,
    rows: int,
    first: tuple[object, ...],
    last: datetime,
    minutes: int,
) -> None:
    candles = _candles(shared_data / path, pair)
    assert dict(candles.schema) == CANDLES_SCHEMA
    assert candles.height == rows
    assert candles.drop("close_time").row(0) == first
    assert candles["close_time"][-1] == last
    assert (candles["close_time"] - candles["open_time"]).mode().to_list() == [timedelta(minutes=minutes)]
    assert candles["open_time"].is_sorted()


def test_a_candle_that_the_exchange_cut_short_ends_where_it_stopped(shared_data: Path) -> None:
    """On 2023-03-24 trading stopped at 12:39 and there is no candle until 14:00."""
    candles = _candles(shared_data / "vendor/binance_archive_spot_klines_BTCUSDT-1h-2023-03.csv")
    cut = candles.filter(pl.col("close_time") - pl.col("open_time") != timedelta(hours=1))
    assert cut.select("open_time", "close_time").rows() == [
        (datetime(2023, 3, 24, 12, tzinfo=UTC), datetime(2023, 3, 24, 12, 39, 41, 647000, tzinfo=UTC))
    ]
    assert candles.filter(pl.col("open_time") > cut["open_time"][0])["open_time"][0].hour == 14


def test_the_unit_of_time_is_decided_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_text(
        _kline(1735689540000, 1735689599999)
        + _kline(1735689600000000, 1735689659999999)
        + _kline(1735689660000, 1735689719999)
    )
    candles = _candles(path)
    start = datetime(2024, 12, 31, 23, 59, tzinfo=UTC)
    assert candles["open_time"].to_list() == [start + timedelta(minutes=minute) for minute in range(3)]
    assert candles["close_time"].to_list() == [start + timedelta(minutes=minute) for minute in range(1, 4)]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_header_row_in_some_files_of_a_series_is_no_row(tmp_path: Path, order: str) -> None:
    minute = 60_000
    texts = {
        name: head + "".join(_kline(start + row * minute, start + (row + 1) * minute - 1) for row in range(2))
        for name, head, start in (("a", KLINES_HEADER, 1735689600000), ("b", "", 1735689600000 + 2 * minute))
    }
    for place, name in enumerate(order):
        (tmp_path / f"{place}.csv").write_text(texts[name])
    candles = _candles(tmp_path)
    assert candles.height == 4
    assert candles["open_time"].is_sorted()
    assert candles["open"].to_list() == [1.0] * 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (_kline(1735689600, 1735689659), "row 2, field open_time: time must be milliseconds or microseconds"),
        (_kline(1735689600000, 1735689600000 - 5000), "row 2, field close_time: a candle must close after it opens"),
        (_kline(1735689600000, 1735693199999), "candles must be of one length, 0:01:00, got 1:00:00"),
    ],
)
def test_an_impossible_time_is_refused(tmp_path: Path, row: str, message: str) -> None:
    text = _kline(1735689480000, 1735689539999) + _kline(1735689540000, 1735689599999) + row
    (tmp_path / "k.csv").write_text(text)
    with pytest.raises(MarketDataError, match=message):
        _candles(tmp_path / "k.csv")


@pytest.mark.parametrize(
    ("path", "pair", "message"),
    [
        (f"{ARCHIVE}/spot/daily/klines", BTC, "candles must be of one length, got 1h, 1m"),
        (f"{ARCHIVE}/*/*aily/klines/BTCUSDT/1h", BTC, "holds no"),
        (f"{ARCHIVE}/spot/daily/klines/BTCUSDT", DOT, "must hold DOTUSDT klines, got BTCUSDT klines"),
        (f"{ARCHIVE}/spot/daily/aggTrades", PEPE, "must hold PEPEUSDT klines, got PEPEUSDT aggTrades"),
    ],
)
def test_files_that_are_no_series_are_refused(shared_data: Path, path: str, pair: PairSettings, message: str) -> None:
    with pytest.raises(MarketDataError, match=message):
        _candles(shared_data / path, pair)


def test_spot_and_um_are_not_mixed(shared_data: Path, tmp_path: Path) -> None:
    for market in ("spot", "futures/um"):
        day = f"{market}/daily/klines/BTCUSDT/1h/BTCUSDT-1h-2024-10-28.zip"
        (tmp_path / "data" / day).parent.mkdir(parents=True)
        (tmp_path / "data" / day).write_bytes((shared_data / ARCHIVE / day).read_bytes())
    with pytest.raises(MarketDataError, match="files must be of one market, got futures/um, spot"):
        _candles(tmp_path)


def test_agg_trades_keep_their_number_and_the_takers_side(shared_data: Path) -> None:
    trades = _trades("binance-agg-trades", shared_data / ARCHIVE, PEPE)
    assert dict(trades.schema) == TRADES_SCHEMA
    assert trades.height == 57229
    assert trades.row(0) == (datetime(2024, 10, 27, 0, 0, 2, 368000, UTC), 9.08e-06, 3591711.0, True, 60953854)
    assert trades.row(-1) == (datetime(2024, 10, 27, 23, 59, 56, 350000, UTC), 9.17e-06, 138444.0, True, 61011082)
    assert trades["timestamp"].is_sorted()


def test_trades_are_those_of_the_file(shared_data: Path) -> None:
    trades = _trades("binance-trades", shared_data / "vendor/binance_spot_trades_BTCUSDT_2024-01-01_first5.csv")
    assert trades.height == 5
    assert trades.row(1) == (datetime(2024, 1, 1, 0, 0, 0, 1000, UTC), 42283.59, 0.00144, True, 3344774380)
    assert trades["timestamp"][-1] == datetime(2024, 1, 1, 0, 0, 0, 4000, UTC)


@pytest.mark.parametrize("header", ["", "id,price,qty,quote_qty,time,is_buyer_maker\n"])
def test_um_trades_have_a_column_less_and_maybe_a_header(tmp_path: Path, header: str) -> None:
    rows = "".join(f"{number},100,1,100,1735689600000,true\n" for number in (1, 100, 2, 101))
    (tmp_path / "t.csv").write_text(header + rows)
    trades = _trades("binance-trades", tmp_path / "t.csv")
    assert trades["trade_id"].to_list() == [1, 2, 100, 101]
    assert trades["taker_buy"].to_list() == [False] * 4


def test_agg_trades_are_not_taken_for_trades(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("26129,0.01633102,4.70443515,27781,27781,1498793709153,true\n")
    with pytest.raises(MarketDataError, match=r"t\.csv, row 0, field"):
        _trades("binance-trades", tmp_path / "t.csv")
