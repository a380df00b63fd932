"""A ledger's trades, and whether they could have happened: round trips, statistics, rules, per-step files."""

from archetype_dagster.backtest.audit.report import AuditReport, audit
from archetype_dagster.backtest.audit.statistics import TradeStatistics, trade_statistics
from archetype_dagster.backtest.audit.steps import write_steps
from archetype_dagster.backtest.audit.trips import TRIP_SCHEMA, round_trips

__all__ = [
    "TRIP_SCHEMA",
    "AuditReport",
    "TradeStatistics",
    "audit",
    "round_trips",
    "trade_statistics",
    "write_steps",
]
