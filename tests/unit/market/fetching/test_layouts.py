"""The archives' layouts: URLs, ranges of dates and refusals."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from archetype_dagster.errors import SettingsError
from archetype_dagster.market.fetching import BinanceSeries, TardisSeries
from archetype_dagster.market.fetching.layouts import parse_day

BASE = "https://archive.example"


def test_every_real_file_is_where_its_series_says(shared_data: Path) -> None:
    root = shared_data / "vendor" / "binance_archive"
    series = [
        (BinanceSeries("BTCUSDT", market="um", period="daily", interval="1h"), "2024-10-28", "2024-10-29"),
        (BinanceSeries("BTCUSDT", period="daily", interval="1h"), "2024-10-28", "2024-10-29"),
        (BinanceSeries("DOTUSDT", market="um"), "2024-11", "2024-12"),
        (BinanceSeries("PEPEUSDT", "aggTrades", period="daily"), "2024-10-27", "2024-10-28"),
        (BinanceSeries("BTCUSDT", period="daily"), "2020-01-01", "2020-01-03"),
    ]
    named = {
        file.path
        for one, start, end in series
        for file in one.files(BASE, parse_day("start", start), parse_day("end", end))
    }
    assert {root / path for path in named} == set(root.rglob("*.zip"))


def test_a_file_has_its_checksum_beside_it_and_mirrors_the_archive() -> None:
    (file,) = BinanceSeries("ETHUSDT", "trades").files(BASE, date(2024, 2, 1), date(2024, 3, 1))
    assert file.url == f"{BASE}/data/spot/monthly/trades/ETHUSDT/ETHUSDT-trades-2024-02.zip"
    assert file.checksum_url == f"{file.url}.CHECKSUM"
    assert file.url == f"{BASE}/{file.path}"


@pytest.mark.parametrize(
    ("start", "end", "months"),
    [
        (date(2023, 12, 1), date(2024, 2, 1), ["2023-12", "2024-01"]),
        (date(2023, 12, 31), date(2024, 2, 2), ["2023-12", "2024-01", "2024-02"]),
        (date(2024, 2, 29), date(2024, 3, 1), ["2024-02"]),
    ],
)
def test_a_range_holds_every_month_it_overlaps(start: date, end: date, months: list[str]) -> None:
    assert [file.period for file in BinanceSeries("BTCUSDT").files(BASE, start, end)] == months


def test_a_tardis_day_has_the_documented_url_and_the_vendors_file_name() -> None:
    series = TardisSeries("deribit", "trades", "btc/perpetual")
    first, second = series.files(BASE, date(2019, 11, 1), date(2019, 11, 3))
    assert first.url == f"{BASE}/deribit/trades/2019/11/01/BTC-PERPETUAL.csv.gz"
    assert first.path.as_posix() == "deribit/trades/BTC-PERPETUAL/deribit_trades_2019-11-01_BTC-PERPETUAL.csv.gz"
    assert (first.checksum_url, second.period) == (None, "2019-11-02")


def test_a_day_or_a_month_is_read_and_nothing_else() -> None:
    assert parse_day("--start", "2024-02") == date(2024, 2, 1)
    assert parse_day("--start", "2024-02-29") == date(2024, 2, 29)
    for text in ("2024", "2023-02-29", "01.02.2024", ""):
        with pytest.raises(SettingsError, match="--start must be YYYY-MM-DD or YYYY-MM"):
            parse_day("--start", text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbol": "../BTC"}, r"symbol may hold letters.*'\.\./BTC'"),
        ({"symbol": "BTC USDT"}, "symbol may hold letters"),
        ({"symbol": "BTCUSDT", "data": "depth"}, "unknown data 'depth'; choose from klines, aggTrades"),
        ({"symbol": "BTCUSDT", "market": "margin"}, "unknown market 'margin'; choose from spot, um"),
        ({"symbol": "BTCUSDT", "period": "weekly"}, "unknown period 'weekly'"),
        ({"symbol": "BTCUSDT", "interval": "10m"}, "unknown interval '10m'"),
        ({"symbol": "BTCUSDT", "data": "bookDepth"}, "bookDepth with market 'um' and period 'daily' only"),
    ],
)
def test_what_the_binance_archive_does_not_have_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BinanceSeries(**options)


def test_what_the_tardis_archive_does_not_have_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown data 'klines'"):
        TardisSeries("binance", "klines", "BTCUSDT")
    with pytest.raises(SettingsError, match="exchange may hold letters"):
        TardisSeries("../binance", "trades", "BTCUSDT")
    with pytest.raises(SettingsError, match="end must be after start"):
        TardisSeries("binance", "trades", "BTCUSDT").files(BASE, date(2024, 1, 2), date(2024, 1, 2))
