"""Every file of the shared real data is read, with counts, span and a row checked by hand, or refused for a reason."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.sources import bars_with_report, load_bars, read_raw
from archetype_dagster.settings import PairSettings, Settings, load_settings

SPOT_ARCHIVE = "vendor/binance_archive/data/spot/daily"
UM_ARCHIVE = "vendor/binance_archive/data/futures/um"
BARS_72H = "book/standx_perp_btcusd_bars_10min_72h.csv"
BOOK_24H = "book/standx_perp_btcusd_book_1s_10lvl_first24h.parquet"
TRADES_24H = "book/standx_perp_btcusd_trades_first24h.parquet"
PEPE = PairSettings(
    base="PEPE", max_position=1e9, beta_1=0.5, liquidity_scale=0.01, synthetic_price=1e-5, tick_size=1e-8
)


class Read(NamedTuple):
    """A file and what must come of it: records by kind, bars, the first and last bar's end, a first record by hand."""

    file: str
    pair: str
    source: str
    minutes: int
    records: dict[str, int]
    bars: int
    first: str
    last: str
    row: dict[str, Any]


def candles(file: str, pair: str, minutes: int, records: int, bars: int, last: str, row: dict[str, Any]) -> Read:
    first = "2023-01-01" if file.startswith("perp") else "2021-05-01"
    return Read(file, pair, "candles", minutes, {"candles": records}, bars, f"{first} 00:{minutes}", last, row)


def klines(file: str, minutes: int, records: int, bars: int, first: str, last: str, row: dict[str, Any]) -> Read:
    pair = "DOT" if "DOT" in file else "BTC"
    return Read(file, pair, "binance-klines", minutes, {"candles": records}, bars, first, last, row)


def minute(file: str, pair: str, kind: str, records: int, row: dict[str, Any]) -> Read:
    """Files of some minutes, read as one-minute bars."""
    if "2026-02-16" in file:
        bars, first, last = 5, "2026-02-16 04:01", "2026-02-16 04:05"
    elif "usdm" in file:
        bars, first, last = 5, "2024-08-08 23:56", "2024-08-09 00:00"
    else:
        bars, first, last = 10, "2024-08-08 23:56", "2024-08-09 00:05"
    return Read(f"book/binance_{file}", pair, "book-table", 1, {kind: records}, bars, first, last, row)


END = "2024-09-01 00:00"
READ = [
    candles("spot_5m/BTCUSDT.parquet", "BTC", 10, 350_725, 175_362, END, {"high": 57791.31, "volume": 432.169503}),
    candles("spot_5m/ETHUSDT.parquet", "ETH", 10, 312_420, 156_209, END, {"close": 2775.22, "volume": 3525.21086}),
    candles("spot_5m/DOTUSDT.parquet", "DOT", 10, 266_886, 133_440, END, {"low": 36.275, "volume": 52085.608}),
    candles("spot_5m/BNBUSDT.parquet", "BNB", 10, 263_050, 131_525, END, {"open": 622.64, "volume": 23387.6764}),
    candles("spot_15m/BTCUSDT.parquet", "BTC", 15, 116_993, 116_993, END, {"high": 58088.0, "volume": 1467.126875}),
    candles("spot_15m/ETHUSDT.parquet", "ETH", 15, 116_993, 116_993, END, {"close": 2773.23, "volume": 12907.39026}),
    candles("spot_15m/DOTUSDT.parquet", "DOT", 15, 114_974, 114_974, END, {"low": 36.111, "volume": 147176.753}),
    candles("spot_15m/BNBUSDT.parquet", "BNB", 15, 116_993, 116_993, END, {"open": 622.64, "volume": 54590.1288}),
    candles("perp/BTCUSDT_perp_5m.parquet", "BTC", 10, 175_392, 87_696, END, {"close": 16529.2, "volume": 844.251}),
    candles("perp/ETHUSDT_perp_5m.parquet", "ETH", 10, 143_900, 71_950, "2024-05-14 15:40", {"low": 1195.42}),
    minute("spot_btcusdt_1000levels_2026-02-16.parquet", "BTC", "books", 320, {"bid1_price": 68424.81}),
    minute("perp_btcusdt_1000levels_2026-02-16.parquet", "BTC", "books", 320, {"bid2_price": 68392.4}),
    minute("spot_btcusdt_trades_2026-02-16.parquet", "BTC", "trades", 10_215, {"size": 8e-05, "taker_buy": True}),
    minute("perp_btcusdt_trades_2026-02-16.parquet", "BTC", "trades", 11_947, {"trade_id": 7294395046}),
    minute("spot_btcusdt_book_1s_20lvl_2024-08-08.parquet", "BTC", "books", 651, {"ask2_size": 0.00843}),
    minute("spot_ethusdt_book_1s_20lvl_2024-08-08.parquet", "ETH", "books", 651, {"ask1_size": 31.4395}),
    minute("usdm_btcusdt_book_1s_20lvl_2024-08-08.parquet", "BTC", "books", 345, {"bid3_size": 20.004}),
    minute("usdm_ethusdt_book_1s_20lvl_2024-08-08.parquet", "ETH", "books", 345, {"ask1_price": 2681.63}),
    minute("spot_btcusdt_trades_2024-08-08.parquet", "BTC", "trades", 19_904, {"price": 61837.63, "taker_buy": False}),
    minute("spot_ethusdt_trades_2024-08-08.parquet", "ETH", "trades", 14_515, {"size": 0.002, "taker_buy": False}),
    minute("usdm_btcusdt_trades_2024-08-08.parquet", "BTC", "trades", 21_313, {"price": 61800.3, "taker_buy": True}),
    minute("usdm_ethusdt_trades_2024-08-08.parquet", "ETH", "trades", 14_076, {"size": 1.0, "taker_buy": False}),
    Read(
        "book/coinbase_btcusd_1min_15lvl_2021-04-17.csv",
        "BTC",
        "book-table",
        10,
        {"books": 600},
        59,
        "2021-04-17 17:40",
        "2021-04-18 03:20",
        # midpoint 60590.015, distances -+8.25e-8, notionals 30828.949219 and 125.550003
        {"bid1_price": 60590.01, "ask1_price": 60590.02, "bid1_size": 30828.949219 / 60590.01},
    ),
    Read(
        BARS_72H,
        "BTC",
        "book-table",
        10,
        {"books": 428, "candles": 428},
        427,
        "2026-01-05 23:00",
        "2026-01-08 22:00",
        {"bid1_price": 94169.0, "bid2_size": 0.1244, "ask1_size": 0.721},
    ),
    Read(
        BOOK_24H,
        "BTC",
        "book-table",
        10,
        {"books": 72_312},
        143,
        "2026-01-05 23:10",
        "2026-01-06 22:50",
        {"bid1_size": 0.7811, "ask2_price": 94125.3},
    ),
    Read(
        TRADES_24H,
        "BTC",
        "book-table",
        10,
        {"trades": 166_244},
        143,
        "2026-01-05 23:10",
        "2026-01-06 22:50",
        {"price": 94125.23, "size": 0.0001, "taker_buy": False},
    ),
    *[
        klines(
            f"vendor/binance_archive_spot_klines_BTCUSDT-1h-2023-0{month}.csv",
            60,
            hours,
            bars,
            f"2023-0{month}-01 01:00",
            f"2023-0{month + 1}-01 00:00",
            {"open": price, "volume": volume},
        )
        # In March the outage of the 24th cut one candle short and took the next one.
        for month, hours, bars, price, volume in (
            (1, 744, 744, 16541.77, 4364.8357),
            (2, 672, 672, 23125.13, 12121.64019),
            (3, 743, 742, 23141.57, 12736.94918),
            (4, 720, 720, 28465.36, 1524.81719),
            (5, 744, 744, 29233.20, 1884.84043),
        )
    ],
    klines(
        f"{SPOT_ARCHIVE}/klines/BTCUSDT/1m/BTCUSDT-1m-2020-01-01.zip",
        10,
        1440,
        144,
        "2020-01-01 00:10",
        "2020-01-02 00:00",
        {"close": 7186.68, "volume": 51.642812},
    ),
    klines(
        f"{SPOT_ARCHIVE}/klines/BTCUSDT/1m/BTCUSDT-1m-2020-01-02.zip",
        10,
        1440,
        144,
        "2020-01-02 00:10",
        "2020-01-03 00:00",
        {"high": 7200.99, "low": 7193.11},
    ),
    *[
        klines(
            f"{folder}/klines/BTCUSDT/1h/BTCUSDT-1h-2024-10-28.zip",
            60,
            24,
            24,
            "2024-10-28 01:00",
            "2024-10-29 00:00",
            {"open": price, "taker_buy_volume": taker},
        )
        for folder, price, taker in ((SPOT_ARCHIVE, 68021.69, 281.12098), (f"{UM_ARCHIVE}/daily", 67992.70, 2415.052))
    ],
    klines(
        f"{UM_ARCHIVE}/monthly/klines/DOTUSDT/1m/DOTUSDT-1m-2024-11.zip",
        10,
        43_200,
        4_320,
        "2024-11-01 00:10",
        "2024-12-01 00:00",
        {"close": 3.958, "taker_buy_volume": 26031.0},
    ),
    Read(
        "vendor/binance_ws_capture_spot_btcusdt_2024-08-08.gz",
        "BTC",
        "binance-capture",
        1,
        {"trades": 10_147},
        3,
        "2024-08-09 00:03",
        "2024-08-09 00:05",
        {},
    ),
]

# Genuine, and too short for a bar: what their readers make of them is tested with the readers.
SHORT = {
    "vendor/tardis_binance-futures_book_snapshot_25_BTCUSDT.csv": ("tardis-book-snapshot", "2020-09-01 00:00:03.8"),
    "vendor/tardis_binance-futures_book_snapshot_5_BTCUSDT.csv": ("tardis-book-snapshot", "2020-09-01 00:00:03.8"),
    "vendor/tardis_binance_incremental_book_L2_2019-12-01_BTCUSDT_first2050.csv": (
        "tardis-incremental-book",
        "2019-12-01 00:00:05.7",
    ),
    "vendor/tardis_binance_trades_2019-12-01_BTCUSDT_first100.csv": ("tardis-trades", "2019-12-01 00:00:03.8"),
    "vendor/binance_spot_depth_snapshot_BTCUSDT.csv": ("binance-depth", "2022-11-01 23:49:39"),
    "vendor/binance_spot_trades_BTCUSDT_2024-01-01_first5.csv": ("binance-trades", "2024-01-01 00:00:00"),
}
NO_CLOCK = "no clock: a row's time must stand in timestamp"
REFUSED = {
    **{name: (source, "BTC", f"no whole bar of 10 minutes: .* from {time}") for name, (source, time) in SHORT.items()},
    "vendor/tardis_bitmex_trades_XBTUSD.csv": ("tardis-trades", "BTC", "must hold rows of BTCUSDT, got XBTUSD"),
    "vendor/tardis_deribit_incremental_book_L2_BTC-PERPETUAL.csv": (
        "tardis-incremental-book",
        "BTC",
        "must hold rows of BTCUSDT, got BTC-PERPETUAL",
    ),
    "vendor/binance_spot_depth_update_BTCUSDT.csv": ("binance-depth", "BTC", "no snapshot comes before the changes"),
    "vendor/binance_archive_um_bookDepth_BTCUSDT-2025-05-19_excerpt.csv": (
        "binance-book-depth",
        "BTC",
        "within so many percent of the mid.* no book to trade on; use tardis-book-snapshot",
    ),
    "book/trademaster_btc_1s_5lvl_no_clock.parquet": ("book-table", "BTC", NO_CLOCK),
    "perp/BTCUSDT_funding_8h.parquet": ("candles", "BTC", "field open: candles must have this column"),
    "perp/ETHUSDT_funding_8h.parquet": ("candles", "ETH", "field open: candles must have this column"),
    "perp/BTCUSDT_mark_1h.parquet": ("candles", "BTC", "field volume: candles must have this column"),
    "perp/ETHUSDT_mark_1h.parquet": ("candles", "ETH", "field volume: candles must have this column"),
}
PEPE_TRADES = f"{SPOT_ARCHIVE}/aggTrades/PEPEUSDT/PEPEUSDT-aggTrades-2024-10-27.zip"


def clock(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def settings_for(path: Path, source: str, minutes: int, **market: Any) -> Settings:
    chosen = {"source": source, "path": str(path), "bar_minutes": minutes, **market}
    return load_settings("smoke", {f"market.{name}": value for name, value in chosen.items()})


def test_the_catalogue_is_whole(shared_data: Path) -> None:
    there = {str(file.relative_to(shared_data)) for file in shared_data.rglob("*") if file.is_file()}
    known = {read.file for read in READ} | set(REFUSED) | {PEPE_TRADES}
    assert {name for name in there - known if not name.endswith((".CHECKSUM", "README.md"))} == set()


@pytest.mark.parametrize("read", READ, ids=lambda read: Path(read.file).name)
def test_a_file_gives_its_records_and_bars(shared_data: Path, read: Read) -> None:
    policies = {"ingestion.books_only": "book_mid"} if list(read.records) == ["books"] else {}
    settings = settings_for(shared_data / read.file, read.source, read.minutes, **policies)
    raw = read_raw(settings.market, settings.pair(read.pair))
    frames = {kind: getattr(raw, kind) for kind in ("books", "trades", "candles")}
    found = {kind: frame.collect() for kind, frame in frames.items() if frame is not None}
    assert {kind: found[kind].height for kind in read.records} == read.records
    first = found[next(iter(read.records))].row(0, named=True)
    assert {name: first[name] for name in read.row} == pytest.approx(read.row, rel=1e-9)
    bars, report = bars_with_report(settings, read.pair)
    assert (bars.height, bars["timestamp"][0], bars["timestamp"][-1]) == (
        read.bars,
        clock(read.first),
        clock(read.last),
    )
    assert report.book_sources == ("observed" if "books" in found else "modelled",)
    assert (bars["ask1_price"] > bars["bid1_price"]).all()


@pytest.mark.parametrize("file", REFUSED, ids=lambda file: Path(file).name)
def test_a_file_that_cannot_become_bars_is_refused_for_the_right_reason(shared_data: Path, file: str) -> None:
    source, pair, reason = REFUSED[file]
    settings = settings_for(shared_data / file, source, 10, **{"ingestion.books_only": "book_mid"})
    with pytest.raises(MarketDataError, match=reason) as caught:
        bars_with_report(settings, pair)
    assert Path(file).name in str(caught.value)


def test_a_pair_of_ones_own_is_read_and_another_ones_file_refused(shared_data: Path) -> None:
    file = shared_data / PEPE_TRADES
    settings = settings_for(file, "binance-agg-trades", 10)
    with pytest.raises(MarketDataError, match="must hold BTCUSDT aggTrades, got PEPEUSDT"):
        bars_with_report(settings, "BTC")
    own = settings.model_copy(update={"pairs": {"PEPE": PEPE}})
    bars, report = bars_with_report(own, "PEPE")
    assert report.ingestion is not None
    assert (bars.height, report.ingestion.trades) == (144, 57_229)


def test_fifteen_minute_candles_do_not_make_ten_minute_bars(shared_data: Path) -> None:
    with pytest.raises(MarketDataError, match="must divide a bar of 10 minutes, got candles of 15 minutes"):
        load_bars(shared_data / "spot_15m", "BTC")
