"""The numbers of a report as tables for a terminal."""

from __future__ import annotations

from rich.table import Table

from archetype_dagster.market.validation import BarsReport
from archetype_dagster.reporting.content import METRIC_COLUMNS, VARIANT_LABELS
from archetype_dagster.types import JsonDict


def metrics_table(summary: JsonDict) -> Table:
    """The six metrics of each variant, from the content of metrics.json; undefined ones read n/a."""
    books = ", ".join(summary["book_sources"])
    span = f"{summary['first_bar'][:10]} to {summary['last_bar'][:10]}"
    table = Table(title=f"{summary['pair']}, {span}, {summary['source']}, {books} book", title_justify="left")
    table.add_column("variant", no_wrap=True)
    for heading, _, _ in METRIC_COLUMNS:
        table.add_column(heading, justify="right")
    variants = summary["variants"]
    if any(values["hindsight"] for values in variants.values()):
        table.caption = "* reads prices it could not have known: a bound, not a result"
    for name in [*(name for name in VARIANT_LABELS if name in variants), *sorted(variants.keys() - VARIANT_LABELS)]:
        values = variants[name]
        label = f"{name} *" if values["hindsight"] else name
        cells = [
            "n/a" if values[metric] is None else f"{scale * values[metric]:,.2f}" for _, metric, scale in METRIC_COLUMNS
        ]
        table.add_row(label, *cells, style="dim" if values["hindsight"] else "bold" if name == "full" else "")
    return table


def quality_tables(pair: str, report: BarsReport) -> list[Table]:
    """What was found in the bars of a pair: counts, faults of the raw records, and the ten largest gaps."""
    quality = Table(title=f"{pair} bars", title_justify="left", show_header=False)
    for name, value in report.as_dict().items():
        if name not in ("gaps", "ingestion"):
            quality.add_row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    tables = [quality, *_fault_tables(report)]
    if not report.gaps:
        return tables
    gaps = Table("last bar before", "first bar after", "missing bars", title="largest gaps", title_justify="left")
    for gap in sorted(report.gaps, key=lambda gap: -gap.missing_bars)[:10]:
        gaps.add_row(f"{gap.last_before:%Y-%m-%d %H:%M}", f"{gap.first_after:%Y-%m-%d %H:%M}", str(gap.missing_bars))
    return [*tables, gaps]


def _fault_tables(report: BarsReport) -> list[Table]:
    raw = report.ingestion
    if raw is None:
        return []
    read = f"{raw.snapshots:,} snapshots, {raw.trades:,} trades, {raw.candles:,} candles"
    faults = Table("fault", "of", title=f"faults in {read}", title_justify="left")
    faults.add_column("count", justify="right")
    faults.add_column("policy")
    for row in raw.faults:
        policy = row.policy or "its bar's"
        faults.add_row(
            row.fault.replace("_", " "), row.unit, f"{row.count:,}", policy, style="" if row.count else "dim"
        )
    return [faults]
