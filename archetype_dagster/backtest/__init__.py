"""From decisions to money: the policy on bars, replay, ledger, metrics, the comparison and the proof of causality.

The event-driven engine's names are loaded at their first use: its compiled book takes a while to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from archetype_dagster.backtest.alignments import Alignments, alignments
from archetype_dagster.backtest.evaluation import VARIANTS, Evaluation, Variant, evaluate
from archetype_dagster.backtest.leaks import Leak, LeakReport, LeakStatus, TracedRows, check_no_lookahead
from archetype_dagster.backtest.ledger import Ledger, Reconciliation, reconcile
from archetype_dagster.backtest.performance import (
    Performance,
    bars_per_year,
    drawdowns,
    mean_performance,
    performance,
)
from archetype_dagster.backtest.policy import Decisions, DecisionTrace, TradingPolicy, archetype_actions, decide
from archetype_dagster.backtest.replay import PricedBars, price_bars, replay, replay_priced
from archetype_dagster.backtest.sensitivity import SENSITIVITY_SCHEMA, sensitivities
from archetype_dagster.backtest.tracing import check_policy, pipeline_trace

if TYPE_CHECKING:
    from archetype_dagster.backtest.engine import (
        BacktestEngine,
        BacktestResult,
        BarContext,
        BaseStrategy,
        L3BookDiff,
        Order,
        Target,
        spot_instrument,
        swap_instrument,
    )

__all__ = [
    "SENSITIVITY_SCHEMA",
    "VARIANTS",
    "Alignments",
    "BacktestEngine",
    "BacktestResult",
    "BarContext",
    "BaseStrategy",
    "DecisionTrace",
    "Decisions",
    "Evaluation",
    "L3BookDiff",
    "Leak",
    "LeakReport",
    "LeakStatus",
    "Ledger",
    "Order",
    "Performance",
    "PricedBars",
    "Reconciliation",
    "Target",
    "TracedRows",
    "TradingPolicy",
    "Variant",
    "alignments",
    "archetype_actions",
    "bars_per_year",
    "check_no_lookahead",
    "check_policy",
    "decide",
    "drawdowns",
    "evaluate",
    "mean_performance",
    "performance",
    "pipeline_trace",
    "price_bars",
    "reconcile",
    "replay",
    "replay_priced",
    "sensitivities",
    "spot_instrument",
    "swap_instrument",
]

_ENGINE_NAMES = frozenset(
    {
        "BacktestEngine",
        "BacktestResult",
        "BarContext",
        "BaseStrategy",
        "L3BookDiff",
        "Order",
        "Target",
        "spot_instrument",
        "swap_instrument",
    }
)


def __getattr__(name: str) -> Any:
    if name in _ENGINE_NAMES:
        return getattr(import_module("archetype_dagster.backtest.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
