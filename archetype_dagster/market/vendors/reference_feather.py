"""The reference project's layout: data/{PAIR}/df_train.feather, df_val.feather and df_test.feather, a row a bar.

Taken from a row: its time, open, high, low, close, the volume traded (`total_trade_volume` where it is there,
else `volume`), and the book `bid1_price`, `bid1_size`, `ask1_price`, ... Everything else is left: the features
that are precomputed there are computed again from these, because they were made by other formulas, and the
three files are one series, because the splits are the settings'.

The layout does not say whether a row's time is its bar's start or end. It is read as the start, the later of
the two: what a row holds is then never known too early, and nothing but the clock's label is at stake.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import MIN_BOOK_LEVELS, book_columns
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import RawMarket
from archetype_dagster.market.table_files import open_tables
from archetype_dagster.market.tables import OPEN_CLOCKS, Table
from archetype_dagster.market.vendors.book_table import scan_books
from archetype_dagster.market.vendors.candles import VALUES, scan_candles, usual_length
from archetype_dagster.settings import PairSettings

FILES: Final = ("df_train.feather", "df_val.feather", "df_test.feather")
_VOLUMES: Final = ("total_trade_volume", "volume")
_SAME: Final = 1e-6


@dataclass(frozen=True)
class ReferenceFeather:
    """The source `reference-feather`."""

    name: str = "reference-feather"
    summary: str = (
        "data/{PAIR}/df_train.feather, df_val and df_test, a row a bar: prices, volume and book are taken, features "
        "computed anew; timestamp is the bar's start"
    )

    def files(self, path: Path, pair: PairSettings, period: Period | None = None) -> tuple[Path, ...]:
        """See `raw.Source.files`."""
        return tuple(find_reference_files(path, pair))

    def read(self, path: Path, pair: PairSettings, period: Period | None = None) -> RawMarket:
        """See `Source.read`; `path` is the folder `data`, or the pair's folder in it."""
        tables = [table for file in find_reference_files(path, pair) for table in open_tables(file, pair)]
        for table in tables:
            _check(table)
        clocks = ("timestamp", *OPEN_CLOCKS)
        lengths = {table.label: usual_length(table, table.clock(clocks)) for table in tables}
        return RawMarket(
            books=scan_books(tables, clocks, delays=lengths), candles=scan_candles(tables, clocks, _VOLUMES)
        )


def find_reference_files(path: Path, pair: PairSettings) -> list[Path]:
    """The files of `ReferenceFeather.read`, training first; `MarketDataError` where there is none."""
    names = (f"{pair.base}{pair.quote}", pair.base)
    folders = [path, *(path / name for name in names)]
    for folder in folders:
        found = [folder / file for file in FILES if (folder / file).is_file()]
        if found:
            return found
    raise MarketDataError(f"must hold {', '.join(FILES)}, or a folder {' or '.join(names)} with them", file=path)


def _check(table: Table) -> None:
    table.clock(("timestamp", *OPEN_CLOCKS))
    for name in (*VALUES[:4], *book_columns(MIN_BOOK_LEVELS)):
        if name not in table.head.columns:
            raise MarketDataError(
                f"a reference table must have this column; there are columns {table.columns()}",
                file=table.label,
                field=name,
            )
    volume = table.first_of(_VOLUMES)
    if volume is None:
        raise MarketDataError(f"the volume traded must stand in {' or '.join(_VOLUMES)}", file=table.label)
    depth = pl.sum_horizontal(name for name in book_columns(MIN_BOOK_LEVELS) if name.endswith("_size"))
    # Some builds of these files call the visible depth their volume.
    differs = table.head.select(((pl.col(volume) - depth).abs() > _SAME * depth).any()).item()
    if not differs:
        raise MarketDataError(
            "volume must be what was traded, got the sum of the book's sizes in every row",
            file=table.label,
            field=volume,
        )
