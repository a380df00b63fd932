"""One small stretch of the embedded market for the tests of the backtest environments."""

import polars as pl
import pytest

from archetype_dagster.envs.sources import EMBEDDED_MARKET
from archetype_dagster.market import load_bars
from archetype_dagster.market.bars import assign_segments


@pytest.fixture(scope="session")
def bars() -> pl.DataFrame:
    """400 bars of ETH in two segments."""
    whole = load_bars(EMBEDDED_MARKET, "ETH")[:410]
    return assign_segments(pl.concat([whole[:150], whole[160:]]), bar_minutes=10)
