"""The market that the trials of a sweep live in: bars until the validation split ends, and nothing after.

A trial is given settings whose source of bars is a file without the test split, and a cache of stages that is
sealed: there is nothing of the test split in its reach, and asking for it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import Artifact
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.market_bars import BARS_FILE
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.stages import Stage
from archetype_dagster.settings import Settings

_SEALED_BARS: Final = Stage("sealed_bars", "sweeps", ("market_bars",), ("splits.validation_end",))


@dataclass(frozen=True)
class _Bars:
    bars: pl.DataFrame

    def save(self, directory: Path) -> None:
        self.bars.write_parquet(directory / BARS_FILE)


def sealed_settings(market_bars: Artifact, settings: Settings, cache: StageCache) -> Settings:
    """The same settings over a file of the bars that end before the validation split does.

    The later bars are not even loaded. What is made from the file depends on its content, so bars of the test split
    change no key of a trial.

    Args:
        market_bars: all bars of the pair.
        settings: the run's settings.
        cache: where the file is kept.

    Raises:
        MarketDataError: there is no bar before validation ends.
    """
    end = settings.splits.validation_end
    pair = str(market_bars.manifest.pair)

    def cut() -> _Bars:
        bars = pl.scan_parquet(market_bars.path(BARS_FILE)).filter(pl.col("timestamp") < end).collect()
        if bars.is_empty():
            raise MarketDataError(f"no bar of {pair} ends before {end:%Y-%m-%d %H:%M}, where validation ends")
        return _Bars(bars.rechunk())

    kept = cache.kept(_SEALED_BARS, settings, pair, [market_bars], lambda _: cut())
    return settings.changed(
        {
            "market.source": "bars",
            "market.path": kept.path(BARS_FILE),
            "market.prices_source": None,
            "market.prices_path": None,
            "market.by_month": False,
        }
    )
