"""Bars of a vendor's source month by month, and all months of a pair as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_builder import bars_of, raw_bars
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.market.period import Period, months_between, named_days
from archetype_dagster.market.raw_bars import RawBars
from archetype_dagster.market.record_batches import bar_end
from archetype_dagster.market.sources import finished_bars, naming_file, path_of, read_raw, source_files
from archetype_dagster.market.validation import BarsReport
from archetype_dagster.market.vendors import DATED, SOURCES
from archetype_dagster.settings import MarketSettings, PairSettings, Settings


def month_files(market: MarketSettings, pair: PairSettings, month: str) -> list[Path]:
    """The files that `month_bars` reads; none where the source has none of the month.

    Raises:
        MarketDataError: the source is not a vendor's, or has no file at all.
        ValueError: the month is not `YYYY-MM`.
    """
    return source_files(_vendors(market), pair, Period.of_month(month, market.bar_minutes))


def month_bars(market: MarketSettings, pair: PairSettings, month: str) -> RawBars:
    """What the records of each bar of a month say by themselves; nothing where the source has none of the month.

    Memory is bounded by the number of bars, whatever the number of records.

    Args:
        market: a vendor's source.
        pair: the pair.
        month: `YYYY-MM`; a bar belongs to the month it lies in.

    Raises:
        MarketDataError: a damaged or foreign file, records outside the days their file is named for, or a
            fault that a policy refuses.
        ValueError: the month is not `YYYY-MM`.
    """
    period = Period.of_month(month, market.bar_minutes)
    if not month_files(market, pair, month):
        return RawBars()
    with naming_file(path_of(market)):
        return raw_bars(read_raw(market, pair, period), market, period=period)


def bars_of_months(months: Sequence[RawBars], settings: Settings, pair: str) -> tuple[pl.DataFrame, BarsReport]:
    """The bars of all months, and the report on them: what `bars_with_report` makes of the same files.

    Args:
        months: all months of the pair, oldest first; where one is left out there is a gap.
        settings: the whole settings tree.
        pair: the pair.

    Raises:
        MarketDataError: see `bars_with_report`.
    """
    market = settings.market
    with naming_file(path_of(market)):
        joined = RawBars.joined(months)
        if not any(joined.parts()):
            raise MarketDataError(f"no month of {pair} holds a record")
        return finished_bars(*bars_of(joined, market), settings, pair)


def covered_months(market: MarketSettings, pair: PairSettings) -> list[str]:
    """The months that the files of a vendor's source have records of, `YYYY-MM`, oldest first.

    Told by the names of the files where they name their days, else by reading the times of all records.

    Raises:
        MarketDataError: the source is not a vendor's, has no file, or one that cannot be read.
    """
    path = path_of(_vendors(market))
    with naming_file(path):
        months = set(_months_of(market.source, path, market, pair))
        if market.prices_source is not None and market.prices_path is not None:
            months.update(_months_of(market.prices_source, market.prices_path, market, pair))
    return sorted(months)


def _months_of(source: str, path: Path, market: MarketSettings, pair: PairSettings) -> Iterator[str]:
    days = [named_days(file) for file in SOURCES[source].files(path, pair)] if source in DATED else [None]
    if all(days):
        for day in days:
            if day is not None:
                yield from day.months()
        return
    raw = SOURCES[source].read(path, pair)
    for records, clock, includes_end in (
        (raw.books, "timestamp", True),
        (raw.trades, "timestamp", False),
        (raw.candles, "open_time", False),
    ):
        if records is not None:
            yield from _months_recorded(records, bar_end(clock, market.bar_minutes, includes_end=includes_end))


def _months_recorded(records: pl.LazyFrame, end: pl.Expr) -> Iterator[str]:
    # A bar that ends at midnight is of the day before.
    inside = (end.dt.epoch("us") - 1).cast(TIMESTAMP)
    try:
        first, last = (
            records.select(inside.min().alias("first"), inside.max().alias("last")).collect(engine="streaming").row(0)
        )
    except pl.exceptions.PolarsError as error:
        raise MarketDataError(f"records cannot be read to their end: {error}") from error
    if isinstance(first, datetime) and isinstance(last, datetime):
        yield from months_between(first, last)


def _vendors(market: MarketSettings) -> MarketSettings:
    if market.source not in SOURCES:
        raise MarketDataError(f"months are built of a vendor's raw data, got market.source {market.source!r}")
    return market
