"""The paper's tables and figures with ours beside the printed ones, and how certain ours are."""

from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.printed import PaperResults, PrintedMetrics, paper_results
from archetype_dagster.reporting.paper.tables import PaperTables, paper_tables, write_paper_tables

__all__ = [
    "PairResults",
    "PaperResults",
    "PaperTables",
    "PrintedMetrics",
    "paper_results",
    "paper_tables",
    "write_paper_tables",
]
