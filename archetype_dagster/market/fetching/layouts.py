"""Which files a series has in a public archive: their URLs, and where they lie in the output folder.

No request is made here. Dates are UTC days; a range is half-open, and every file that overlaps it belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from archetype_dagster.errors import SettingsError

BINANCE_MARKETS: Final = {"spot": "spot", "um": "futures/um"}
BINANCE_DATA: Final = ("klines", "aggTrades", "trades", "bookDepth")
BINANCE_PERIODS: Final = ("monthly", "daily")
# Candles of a day and more are left out: no bar is made of them.
BINANCE_INTERVALS: Final = ("1s", "1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h")
TARDIS_DATA: Final = ("book_snapshot_5", "book_snapshot_25", "incremental_book_L2", "trades")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RemoteFile:
    """One file of an archive.

    Attributes:
        url: where it is served.
        path: where it belongs, relative to the output folder.
        period: the day or month it covers, e.g. `2024-01`.
        checksum_url: where its SHA-256 is served; None where the archive publishes none.
    """

    url: str
    path: PurePosixPath
    period: str
    checksum_url: str | None = None


@dataclass(frozen=True)
class BinanceSeries:
    """A series of the Binance archive: zips by month or by day, each with a CHECKSUM file beside it.

    The output folder mirrors the archive: `data/spot/monthly/klines/BTCUSDT/1m/BTCUSDT-1m-2024-01.zip`.

    Attributes:
        symbol: e.g. `BTCUSDT`.
        data: one of `BINANCE_DATA`.
        market: `spot`, or `um` for USD-margined futures.
        period: `monthly` or `daily` files.
        interval: candle length of `klines`; unused by the others.

    Raises:
        SettingsError: an unknown choice, or one the archive does not have.
    """

    symbol: str
    data: str = "klines"
    market: str = "spot"
    period: str = "monthly"
    interval: str = "1m"

    def __post_init__(self) -> None:
        _one_of("data", self.data, BINANCE_DATA)
        _one_of("market", self.market, BINANCE_MARKETS)
        _one_of("period", self.period, BINANCE_PERIODS)
        _one_of("interval", self.interval, BINANCE_INTERVALS)
        _check_name("symbol", self.symbol)
        if self.data == "bookDepth" and (self.market, self.period) != ("um", "daily"):
            raise SettingsError(
                "the archive has bookDepth with market 'um' and period 'daily' only, "
                f"got market {self.market!r} and period {self.period!r}"
            )

    @property
    def folder(self) -> PurePosixPath:
        """Folder of the files, relative to the archive's root and to the output folder alike."""
        folder = PurePosixPath("data", BINANCE_MARKETS[self.market], self.period, self.data, self.symbol)
        return folder / self.interval if self.data == "klines" else folder

    def files(self, base_url: str, start: date, end: date) -> tuple[RemoteFile, ...]:
        """The files that overlap [start, end), oldest first; `SettingsError` where end is not after start."""
        label = self.interval if self.data == "klines" else self.data
        days = _months(start, end) if self.period == "monthly" else _days(start, end)
        periods = [f"{day:%Y-%m}" if self.period == "monthly" else day.isoformat() for day in days]
        paths = [self.folder / f"{self.symbol}-{label}-{period}.zip" for period in periods]
        return tuple(
            RemoteFile(f"{base_url}/{path}", path, period, f"{base_url}/{path}.CHECKSUM")
            for path, period in zip(paths, periods, strict=True)
        )


@dataclass(frozen=True)
class TardisSeries:
    """A series of the Tardis archive: gzipped CSV by day, without checksums.

    The output folder holds one folder a series, with the file names of the vendor's own client:
    `binance/trades/BTCUSDT/binance_trades_2024-01-01_BTCUSDT.csv.gz`.

    Attributes:
        exchange: e.g. `binance` or `binance-futures`.
        data: one of `TARDIS_DATA`.
        symbol: e.g. `BTCUSDT`; upper-cased, with `:` and `/` written as `-`, as the archive does.

    Raises:
        SettingsError: an unknown kind of data, or a name that is no plain word.
    """

    exchange: str
    data: str
    symbol: str

    def __post_init__(self) -> None:
        _one_of("data", self.data, TARDIS_DATA)
        _check_name("exchange", self.exchange)
        _check_name("symbol", self.archive_symbol)

    @property
    def archive_symbol(self) -> str:
        """The symbol as the archive writes it."""
        return self.symbol.replace(":", "-").replace("/", "-").upper()

    @property
    def folder(self) -> PurePosixPath:
        """Folder of the files, relative to the output folder."""
        return PurePosixPath(self.exchange, self.data, self.archive_symbol)

    def files(self, base_url: str, start: date, end: date) -> tuple[RemoteFile, ...]:
        """The files of the days of [start, end), oldest first; `SettingsError` where end is not after start."""
        symbol = self.archive_symbol
        return tuple(
            RemoteFile(
                f"{base_url}/{self.exchange}/{self.data}/{day:%Y/%m/%d}/{quote(symbol, safe='')}.csv.gz",
                self.folder / f"{self.exchange}_{self.data}_{day.isoformat()}_{symbol}.csv.gz",
                day.isoformat(),
            )
            for day in _days(start, end)
        )


def parse_day(option: str, text: str) -> date:
    """A day from `YYYY-MM-DD`, or the first of a month from `YYYY-MM`; `SettingsError` names the option."""
    try:
        return date.fromisoformat(f"{text}-01" if re.fullmatch(r"\d{4}-\d{2}", text) else text)
    except ValueError:
        raise SettingsError(f"{option} must be YYYY-MM-DD or YYYY-MM, got {text!r}") from None


def _days(start: date, end: date) -> Iterator[date]:
    if end <= start:
        raise SettingsError(f"end must be after start, got {start} to {end}")
    return (start + timedelta(days=offset) for offset in range((end - start).days))


def _months(start: date, end: date) -> Iterator[date]:
    return iter(dict.fromkeys(day.replace(day=1) for day in _days(start, end)))


def _one_of(name: str, value: str, choices: Iterable[str]) -> None:
    names = tuple(choices)
    if value not in names:
        raise SettingsError(f"unknown {name} {value!r}; choose from {', '.join(names)}")


def _check_name(name: str, value: str) -> None:
    # The name becomes a folder and a part of a URL.
    if not _NAME.fullmatch(value):
        raise SettingsError(f"{name} may hold letters, digits, '.', '_' and '-' only, got {value!r}")
