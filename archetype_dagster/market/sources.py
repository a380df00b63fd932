"""Where bars come from: the embedded market, files already in the bars schema, or a vendor's raw data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_builder import build_bars
from archetype_dagster.market.bars import (
    BARS_SCHEMA,
    TIMESTAMP,
    apply_book_policies,
    assign_segments,
    bar_column_names,
    num_book_levels,
)
from archetype_dagster.market.candles import read_parquet
from archetype_dagster.market.ingestion import IngestionReport
from archetype_dagster.market.modelled_book import add_modelled_book
from archetype_dagster.market.period import Period
from archetype_dagster.market.raw import RawMarket
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.market.table_files import open_tables
from archetype_dagster.market.tables import OPEN_CLOCKS
from archetype_dagster.market.validation import BarsReport, validate_bars
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.market.vendors.book_table import book_levels
from archetype_dagster.market.vendors.candles import has_candles
from archetype_dagster.settings import MarketSettings, PairSettings, Settings


def load_bars(
    source: str | Path | MarketSettings, pair: str, *, start: datetime | None = None, end: datetime | None = None
) -> pl.DataFrame:
    """Validated bars of one pair, oldest first, with segments and without a spread of zero or less.

    Args:
        source: "synthetic"; the path of bars, candles or a book table (told apart by their columns) or of a
            folder with such a file for each pair, for 10-minute bars; or market settings, which say all
            of this, the bar length and every other vendor's format.
        pair: BTC, ETH, DOT or BNB.
        start: keep bars that end at or after this time; without a time zone it is UTC.
        end: keep bars that end before this time.

    Returns:
        A table in the bars schema (`BARS_SCHEMA` and `book_columns`).

    Raises:
        MarketDataError: a file is missing, unreadable or breaks a rule, or no bar lies in the range;
            names file, row, field and rule. Rows are those of the table checked: a candle file's own
            rows for its candles, else bars.
        SettingsError: unknown pair.
    """
    settings = Settings()
    market = source if isinstance(source, MarketSettings) else _market_settings(source, settings.pair(pair))
    bars, _ = bars_with_report(settings.model_copy(update={"market": market}), pair)
    if start is None and end is None:
        return bars
    low, high = (None if moment is None else _utc(moment) for moment in (start, end))
    inside = [pl.col("timestamp") >= low] if low is not None else []
    inside += [pl.col("timestamp") < high] if high is not None else []
    kept = bars.filter(*inside)
    if kept.is_empty():
        raise MarketDataError(
            f"no bar of {pair} ends from {low or 'the first'} until before {high or 'the end'}; "
            f"there are bars from {bars['timestamp'][0]} to {bars['timestamp'][-1]}",
            field="timestamp",
        )
    return assign_segments(kept, bar_minutes=market.bar_minutes)


def bars_for(settings: Settings, pair: str) -> pl.DataFrame:
    """Bars of `pair` from the source that `settings.market` names; see `load_bars`."""
    return bars_with_report(settings, pair)[0]


def bars_with_report(settings: Settings, pair: str) -> tuple[pl.DataFrame, BarsReport]:
    """Bars as in `bars_for`, and the report on them as they came, before locked and crossed rows were widened."""
    market, spec = settings.market, settings.pair(pair)
    if market.source == "synthetic":
        bars = synthetic_bars(market, spec, pair_name=pair, seed=settings.market_seed)
        return bars, validate_bars(bars, bar_minutes=market.bar_minutes)
    path = path_of(market)
    if market.source == "bars":
        path = find_file(path, spec)
        with naming_file(path):
            return _checked(_in_schema(read_parquet(path)), market.bar_minutes, None)
    with naming_file(path):
        return finished_bars(*build_bars(read_raw(market, spec), market), settings, pair)


def finished_bars(
    bars: pl.DataFrame, ingestion: IngestionReport, settings: Settings, pair: str
) -> tuple[pl.DataFrame, BarsReport]:
    """Bars as `build_bars` gives them, with a modelled book where they have none, validated; see `bars_with_report`."""
    market, spec = settings.market, settings.pair(pair)
    bars = assign_segments(bars, bar_minutes=market.bar_minutes)
    if "book_source" not in bars.columns:
        bars = add_modelled_book(
            bars, market.modelled_book, spec, seed=settings.market_seed, bar_minutes=market.bar_minutes
        )
    return _checked(bars, market.bar_minutes, ingestion)


def _checked(
    bars: pl.DataFrame, bar_minutes: int, ingestion: IngestionReport | None
) -> tuple[pl.DataFrame, BarsReport]:
    report = replace(validate_bars(bars, bar_minutes=bar_minutes), ingestion=ingestion)
    bars = apply_book_policies(assign_segments(bars, bar_minutes=bar_minutes))
    return bars.select(bar_column_names(num_book_levels(bars))), report


def read_raw(market: MarketSettings, pair: PairSettings, period: Period | None = None) -> RawMarket:
    """The raw records of a vendor's source; where a source of prices is named, its trades and candles.

    Args:
        market: the source.
        pair: the pair.
        period: see `Source.read`.

    Raises:
        MarketDataError: see `Source.read`.
    """
    raw = SOURCES[market.source].read(path_of(market), pair, period)
    if market.prices_source is None or market.prices_path is None:
        return raw
    prices = SOURCES[market.prices_source].read(market.prices_path, pair, period)
    if prices.trades is None and prices.candles is None:
        raise MarketDataError(f"{market.prices_source} holds neither trades nor candles", file=market.prices_path)
    return RawMarket(books=raw.books, trades=prices.trades, candles=prices.candles)


def source_files(market: MarketSettings, pair: PairSettings, period: Period | None = None) -> list[Path]:
    """The files that the bars of a pair, or those of a period, are made from, none for the embedded market.

    Raises:
        MarketDataError: there is none at all.
    """
    if market.source == "synthetic":
        return []
    places = [(market.source, market.path), (market.prices_source, market.prices_path)]
    return [file for source, path in places if source and path for file in _files_of(source, path, pair, period)]


def _files_of(source: str, path: Path, pair: PairSettings, period: Period | None) -> tuple[Path, ...]:
    if source != "bars":
        return SOURCES[source].files(path, pair, period)
    file = find_file(path, pair)
    if not file.is_file():
        raise MarketDataError("file does not exist", file=file)
    return (file,)


def find_file(path: Path, pair: PairSettings) -> Path:
    """The file itself, or a folder's file for the pair: ETHUSDT.parquet or ETH.parquet.

    Raises:
        MarketDataError: there is none; lists what the folder holds.
    """
    if not path.is_dir():
        return path
    names = (f"{pair.base}{pair.quote}.parquet", f"{pair.base}.parquet")
    for name in names:
        if (path / name).is_file():
            return path / name
    there = ", ".join(sorted(entry.name for entry in path.glob("*.parquet"))) or "no Parquet file"
    raise MarketDataError(f"folder must hold {' or '.join(names)}, it holds {there}", file=path)


def _market_settings(source: str | Path, pair: PairSettings) -> MarketSettings:
    if source == "synthetic":
        return MarketSettings()
    path = Path(source)
    table = open_tables(path, pair)[0]
    columns = set(table.head.columns)
    if {"timestamp", "open", "bid1_price", "book_source"} <= columns:
        return MarketSettings(source="bars", path=path)
    if has_candles(table, OPEN_CLOCKS) and not book_levels(table):
        return MarketSettings(source="candles", path=path)
    if book_levels(table):
        return MarketSettings(source="book-table", path=path)
    raise MarketDataError(
        "neither bars (timestamp, open, bid1_price, book_source, ...), nor candles (open_time, open, ...), nor a book "
        f"table (timestamp, bid1_price, ...), got columns {table.columns()}",
        file=table.label,
    )


def path_of(market: MarketSettings) -> Path:
    """Where the source lies; `MarketDataError` where the settings do not say."""
    if market.path is None:
        raise MarketDataError(f"market.source {market.source!r} needs market.path")
    return market.path


def _in_schema(table: pl.DataFrame) -> pl.DataFrame:
    """A file's columns in the order and types of the bars schema; what has no place there is left out."""
    if "timestamp" not in table.columns:
        raise MarketDataError("a bars table must have this column", field="timestamp")
    times = table.schema["timestamp"]
    if not isinstance(times, pl.Datetime) or times.time_zone is None:
        raise MarketDataError(f"timestamp must be a time with a time zone, got type {times}", field="timestamp")
    bars = table.with_columns(pl.col("timestamp").dt.convert_time_zone("UTC").cast(TIMESTAMP))
    if "taker_buy_volume" not in bars.columns:
        bars = bars.with_columns(pl.lit(None, pl.Float64).alias("taker_buy_volume"))
    names = [name for name in bar_column_names(num_book_levels(bars)) if name != "segment"]
    for name in names:
        if name not in bars.columns:
            raise MarketDataError("a bars table must have this column", field=name)
        if BARS_SCHEMA.get(name, pl.Float64()) == pl.Float64() and bars.schema[name].is_numeric():
            bars = bars.with_columns(pl.col(name).cast(pl.Float64))
    return bars.select(names)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Name the file in every `MarketDataError` raised inside."""
    try:
        yield
    except MarketDataError as error:
        if error.file is not None:
            raise
        raise MarketDataError(error.rule, file=file, row=error.row, field=error.field) from error
