"""Pictures as PNG bytes: plain arrays in, the same bytes out for the same data, in a light and a dark theme."""

from archetype_dagster.reporting.plots.archetypes import (
    ArchetypeExample,
    archetype_behaviour,
    archetype_profile,
    usage,
)
from archetype_dagster.reporting.plots.canvas import DARK, LIGHT, Theme
from archetype_dagster.reporting.plots.performance import Curve, drawdown, equity, exposure, recent_trades
from archetype_dagster.reporting.plots.quality import bars_quality
from archetype_dagster.reporting.plots.training import histograms, learning_curves, price_history

__all__ = [
    "DARK",
    "LIGHT",
    "ArchetypeExample",
    "Curve",
    "Theme",
    "archetype_behaviour",
    "archetype_profile",
    "bars_quality",
    "drawdown",
    "equity",
    "exposure",
    "histograms",
    "learning_curves",
    "price_history",
    "recent_trades",
    "usage",
]
