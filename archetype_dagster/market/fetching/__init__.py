"""Downloads from the public archives of Binance and Tardis: layouts, transfer, verification."""

from archetype_dagster.market.fetching.keys import TARDIS_KEY_VARIABLE, ArchiveKey
from archetype_dagster.market.fetching.layouts import BinanceSeries, RemoteFile, TardisSeries
from archetype_dagster.market.fetching.runs import FetchReport, FetchStatus, FileOutcome, fetch_files

__all__ = [
    "TARDIS_KEY_VARIABLE",
    "ArchiveKey",
    "BinanceSeries",
    "FetchReport",
    "FetchStatus",
    "FileOutcome",
    "RemoteFile",
    "TardisSeries",
    "fetch_files",
]
