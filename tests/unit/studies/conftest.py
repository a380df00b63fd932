"""A small market and one cache of stages for the tests of studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.sources import bars_for
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings


@dataclass(frozen=True)
class Market:
    """A small market of ETH and its test rows."""

    settings: Settings
    bars: pl.DataFrame
    table: FeatureTable
    test: MarketDataset


@pytest.fixture(scope="session")
def market(tiny: Callable[..., Settings]) -> Market:
    settings = tiny()
    bars = bars_for(settings, "ETH")
    table = build_feature_table(bars, settings, "ETH")
    return Market(settings, bars, table, split_dataset(table.dataset(settings), settings.splits).test)


@pytest.fixture
def accounts(market: Market) -> SplitAccounts:
    dates = market.settings.splits
    return SplitAccounts(market.bars, market.test, market.settings, (dates.test_start, dates.test_end))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[..., StageCache]) -> StageCache:
    """One cache for all tests that only add to it."""
    return cache_at(tmp_path_factory.mktemp("studies"))
