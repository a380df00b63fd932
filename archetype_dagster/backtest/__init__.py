"""From decisions to money: the policy on bars, replay, ledger, metrics, the comparison and the proof of causality."""

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

__all__ = [
    "SENSITIVITY_SCHEMA",
    "VARIANTS",
    "Alignments",
    "DecisionTrace",
    "Decisions",
    "Evaluation",
    "Leak",
    "LeakReport",
    "LeakStatus",
    "Ledger",
    "Performance",
    "PricedBars",
    "Reconciliation",
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
]
