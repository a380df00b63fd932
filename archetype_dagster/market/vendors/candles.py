"""Candles as trading bots store them: Parquet, Feather, JSON or CSV, labelled by their start.

The start stands in the first of `open_time`, `bar_open_ms`, `date`, `timestamp` and `time`. A candle ends where
the next one usually begins: at the most frequent distance of the starts in the file's first thousand rows.
A JSON file may hold rows without names: [start, open, high, low, close, volume].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import naming
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import CANDLES_SCHEMA, RawMarket
from archetype_dagster.market.table_files import find_table_files, open_tables
from archetype_dagster.market.tables import OPEN_CLOCKS, Table, scan_tables, utc_times
from archetype_dagster.settings import PairSettings

_PRICES: Final = ("open", "high", "low", "close")
VALUES: Final = (*_PRICES, "volume")
_TAKERS: Final = ("taker_buy_volume", "taker_buy_base_volume", "taker_buy_base", "buy_volume")


@dataclass(frozen=True)
class CandleTable:
    """The source `candles`."""

    name: str = "candles"
    summary: str = "candles as trading bots store them, labelled by their start; Parquet, Feather, JSON or CSV"

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return tuple(find_table_files(path, pair))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """See `Source.read`; a folder's files are those with the pair in their name."""
        tables = open_tables(path, pair)
        for table in tables:
            for name in VALUES:
                if name not in table.head.columns:
                    raise MarketDataError(
                        f"candles must have this column; there are columns {table.columns()}",
                        file=table.label,
                        field=name,
                    )
            table.clock(OPEN_CLOCKS)
        return RawMarket(candles=scan_candles(tables, OPEN_CLOCKS))


def has_candles(table: Table, clocks: Sequence[str]) -> bool:
    """Whether a table has a start and all values of candles."""
    return table.first_of(clocks) is not None and set(VALUES) <= set(table.head.columns)


def scan_candles(tables: Sequence[Table], clocks: Sequence[str], volumes: Sequence[str] = ("volume",)) -> pl.LazyFrame:
    """Canonical candles of tables for which `has_candles` holds.

    Args:
        tables: one or more.
        clocks: names of the column with a candle's start, the preferred one first.
        volumes: names of the column with the volume traded, likewise.

    Raises:
        MarketDataError: no clock, or too few rows to tell the candles' length.
    """
    lengths = {table.label: usual_length(table, table.clock(clocks)) for table in tables}

    def volume_of(table: Table) -> str:
        return table.first_of(volumes) or volumes[-1]

    def columns(table: Table) -> list[str]:
        taker = table.first_of(_TAKERS)
        return [table.clock(clocks), *_PRICES, volume_of(table), *([taker] if taker is not None else [])]

    def convert(table: Table, rows: pl.DataFrame) -> pl.DataFrame:
        taker = table.first_of(_TAKERS)
        start = utc_times(rows[table.clock(clocks)]).alias("open_time")
        values = rows.select(
            *[pl.col(name).cast(pl.Float64) for name in _PRICES],
            pl.col(volume_of(table)).cast(pl.Float64).alias("volume"),
            (pl.lit(None) if taker is None else pl.col(taker)).cast(pl.Float64).alias("taker_buy_volume"),
        )
        return pl.DataFrame([start, (start + lengths[table.label]).alias("close_time"), *values.get_columns()])

    return scan_tables(tables, columns, convert, schema=CANDLES_SCHEMA, by=["open_time"])


def usual_length(table: Table, clock: str) -> timedelta:
    """Most frequent distance of the times in a table's first rows; the shorter one of two."""
    with naming(table.label):
        starts = utc_times(table.head[clock]).unique().sort()
    if len(starts) < 2:
        raise MarketDataError("two candles are needed to tell their length, got one", file=table.label, field=clock)
    distances = starts.diff().drop_nulls().value_counts().sort("count", clock, descending=[True, False])
    length: timedelta = distances[clock][0]
    return length
