"""Market data: bars from every source, their validation, features, costs and splits."""

from archetype_dagster.market.book import trade_costs
from archetype_dagster.market.dataset import HorizonBatch, MarketDataset
from archetype_dagster.market.features import compute_features
from archetype_dagster.market.sources import load_bars
from archetype_dagster.market.validation import BarsReport, validate_bars

__all__ = [
    "BarsReport",
    "HorizonBatch",
    "MarketDataset",
    "compute_features",
    "load_bars",
    "trade_costs",
    "validate_bars",
]
