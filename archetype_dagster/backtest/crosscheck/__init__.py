"""The same signals through other people's engines, which keep positions, cash and fees by their own arithmetic."""

from archetype_dagster.backtest.crosscheck.comparison import (
    ENGINES,
    CrossCheck,
    cross_check,
    engine_versions,
    installed_engines,
)
from archetype_dagster.backtest.crosscheck.signals import EngineAccount, Signals, signals_of

__all__ = [
    "ENGINES",
    "CrossCheck",
    "EngineAccount",
    "Signals",
    "cross_check",
    "engine_versions",
    "installed_engines",
    "signals_of",
]
