"""Artifacts unpacked into the domain's own objects."""

import polars as pl

from archetype_dagster.artifacts import Artifact
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.codebook import Codebook
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.market_bars import BARS_FILE
from archetype_dagster.market.splits import Splits, split_dataset
from archetype_dagster.refinement import Refiner
from archetype_dagster.selection import Selector
from archetype_dagster.settings import Settings


def bars_of(market_bars: Artifact) -> pl.DataFrame:
    """The bars table."""
    return pl.read_parquet(market_bars.path(BARS_FILE))


def table_of(feature_table: Artifact) -> FeatureTable:
    """The feature table."""
    return FeatureTable.load(feature_table.directory)


def splits_of(feature_table: Artifact, settings: Settings, *, sealed: bool = False) -> Splits:
    """Training, validation and test datasets; without the test split where it is `sealed`, see `split_dataset`."""
    return split_dataset(table_of(feature_table).dataset(settings), settings.splits, sealed=sealed)


def policy_of(codebook: Artifact, selector: Artifact, refiner: Artifact | None, settings: Settings) -> TradingPolicy:
    """The three frozen phases as one policy; without a refiner it trades its base actions."""
    return TradingPolicy(
        Codebook.load(codebook.directory),
        Selector.load(selector.directory),
        None if refiner is None else Refiner.load(refiner.directory),
        settings,
    )
