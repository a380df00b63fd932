"""Choosing the files of one pair, one kind and one market in the layout of Binance's public archive."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.files import DataFile, find_files
from archetype_dagster.settings import PairSettings

ArchiveKind = Literal["klines", "aggTrades", "trades", "bookDepth"]

_NAME: Final = re.compile(r"(?:^|_)([A-Z0-9]+)-(?:(\d+(?:s|mo|m|h|d|w))|(aggTrades|trades|bookDepth|\w+))-\d{4}-\d{2}")
_MARKET: Final = re.compile(r"/data/(spot|futures/um|futures/cm)/")


def archive_files(path: Path, pair: PairSettings, kind: ArchiveKind) -> tuple[DataFile, ...]:
    """Files under `path` that are named for the pair and the kind, or for neither: SYMBOL-KIND-DATE, KIND an
    interval for klines.

    Raises:
        MarketDataError: see `find_files`; all files are named for other symbols or kinds; files of several
            intervals or markets (spot, um, cm) in one series, or of cm, whose volumes count contracts.
    """
    symbol = f"{pair.base}{pair.quote}"
    chosen: list[DataFile] = []
    others, intervals, markets = set[str](), set[str](), set[str]()
    for file in find_files(path):
        match = _NAME.search(file.path.name)
        if match and (match[1] != symbol or (match[3] or "klines") != kind):
            others.add(f"{match[1]} {match[3] or 'klines'}")
            continue
        chosen.append(file)
        intervals.update([match[2]] if match and match[2] else [])
        markets.update(_MARKET.findall(file.path.as_posix()))
    if not chosen:
        raise MarketDataError(f"must hold {symbol} {kind}, got {', '.join(sorted(others))}", file=path)
    if len(intervals) > 1:
        raise MarketDataError(f"candles must be of one length, got {', '.join(sorted(intervals))}", file=path)
    if len(markets) > 1:
        raise MarketDataError(f"files must be of one market, got {', '.join(sorted(markets))}", file=path)
    if markets == {"futures/cm"}:
        raise MarketDataError("volumes must be in base units, those of futures/cm count contracts", file=path)
    return tuple(chosen)
