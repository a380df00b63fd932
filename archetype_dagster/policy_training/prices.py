"""The prices that a specification names, cut into its windows."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from archetype_dagster.artifacts import file_hash
from archetype_dagster.envs.price_panel import generated_prices
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_builder import build_bars
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.sources import naming_file, read_raw, source_files
from archetype_dagster.settings import MarketSettings, Settings
from archetype_dagster.settings.policy_specs import CandleUniverse, GeneratedUniverse

Prices = pl.DataFrame | dict[str, pl.DataFrame]


def load_prices(universe: GeneratedUniverse | CandleUniverse) -> Prices:
    """What `price_panel` takes: a wide frame of generated prices, or the bars of each pair; nothing is filled.

    Raises:
        MarketDataError: candles that are missing, cannot be read or break a rule.
        SettingsError: unknown pair.
    """
    if isinstance(universe, GeneratedUniverse):
        return generated_prices(universe)
    settings, market = Settings(), _candles(universe)
    with naming_file(universe.path):
        built = {pair: build_bars(read_raw(market, settings.pair(pair)), market)[0] for pair in universe.pairs}
    return {pair: assign_segments(bars, bar_minutes=universe.bar_minutes) for pair, bars in built.items()}


def price_files(universe: GeneratedUniverse | CandleUniverse) -> dict[str, str]:
    """Hashes of the files that the prices come from, by pair and number; none for generated ones."""
    if isinstance(universe, GeneratedUniverse):
        return {}
    settings, market = Settings(), _candles(universe)
    return {
        f"{pair}/{number}": file_hash(file)
        for pair in universe.pairs
        for number, file in enumerate(source_files(market, settings.pair(pair)))
    }


def within(prices: Prices, window: tuple[datetime, datetime]) -> Prices:
    """The rows that end from the window's start until before its end.

    Raises:
        MarketDataError: there is none.
    """
    if isinstance(prices, dict):
        return {name: _rows(frame, window) for name, frame in prices.items()}
    return _rows(prices, window)


def _rows(frame: pl.DataFrame, window: tuple[datetime, datetime]) -> pl.DataFrame:
    low, high = window
    kept = frame.filter(pl.col("timestamp") >= low, pl.col("timestamp") < high)
    if kept.is_empty():
        raise MarketDataError(
            f"no row ends from {low} until before {high}; there are rows from {frame['timestamp'][0]} "
            f"to {frame['timestamp'][-1]}",
            field="timestamp",
        )
    return kept


def _candles(universe: CandleUniverse) -> MarketSettings:
    return MarketSettings(source="candles", path=universe.path, bar_minutes=universe.bar_minutes)
