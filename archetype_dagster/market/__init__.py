"""Market data: bars from every source, their validation, features, costs and splits.

Names are loaded at their first use: a deployed policy computes features without what the settings need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    "BarsReport": "validation",
    "HorizonBatch": "dataset",
    "MarketDataset": "dataset",
    "compute_features": "features",
    "load_bars": "sources",
    "trade_costs": "book",
    "validate_bars": "validation",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
