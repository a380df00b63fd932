"""Readers of vendors' formats, one module each, found by name in `SOURCES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from archetype_dagster.market.raw import Source
from archetype_dagster.market.vendors.binance import BINANCE_AGG_TRADES, BinanceKlines, BinanceTrades
from archetype_dagster.market.vendors.binance_capture import BinanceCapture
from archetype_dagster.market.vendors.binance_depth import BinanceBookDepth, BinanceDepth
from archetype_dagster.market.vendors.book_table import BookTable
from archetype_dagster.market.vendors.candles import CandleTable
from archetype_dagster.market.vendors.reference_feather import ReferenceFeather
from archetype_dagster.market.vendors.tardis import TardisBookSnapshots, TardisIncrementalBook, TardisTrades

_ALL: Final[tuple[Source, ...]] = (
    TardisBookSnapshots(),
    TardisIncrementalBook(),
    TardisTrades(),
    BinanceKlines(),
    BINANCE_AGG_TRADES,
    BinanceTrades(),
    BinanceBookDepth(),
    BinanceDepth(),
    BinanceCapture(),
    BookTable(),
    CandleTable(),
    ReferenceFeather(),
)

SOURCES: Final[Mapping[str, Source]] = MappingProxyType({source.name: source for source in _ALL})
"""Every source by its name in settings and on the command line."""

DATED: Final = frozenset(
    {
        "tardis-book-snapshot",
        "tardis-incremental-book",
        "tardis-trades",
        "binance-klines",
        "binance-agg-trades",
        "binance-trades",
        "binance-book-depth",
    }
)
"""Sources of which a period is read from its own files, told by the days in their names."""
