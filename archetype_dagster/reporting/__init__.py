"""Pictures and self-contained HTML pages for people, beside the same numbers as JSON, CSV and Parquet."""

from archetype_dagster.reporting.leaderboard import leaderboard, write_leaderboard
from archetype_dagster.reporting.method_board import method_leaderboard
from archetype_dagster.reporting.report import write_report
from archetype_dagster.reporting.written import read_examples, read_ledger, read_metrics

__all__ = [
    "leaderboard",
    "method_leaderboard",
    "read_examples",
    "read_ledger",
    "read_metrics",
    "write_leaderboard",
    "write_report",
]
