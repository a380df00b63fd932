"""Metadata that a person looks at: tables, inline pictures and plain numbers."""

import base64
from collections.abc import Mapping, Sequence

import dagster as dg
import polars as pl

from resources.tracking import Tracker

MetadataEntry = dg.MetadataValue | str | int | float | bool
Metadata = dict[str, MetadataEntry]


def picture(png: bytes, alternative: str) -> dg.MarkdownMetadataValue:
    """A PNG shown inline in the asset's page."""
    return dg.MetadataValue.md(f"![{alternative}](data:image/png;base64,{base64.b64encode(png).decode()})")


def table(rows: Sequence[Mapping[str, object]]) -> dg.MarkdownMetadataValue:
    """Rows with equal keys as a Markdown table; None reads n/a, floats have four significant digits."""
    if not rows:
        return dg.MetadataValue.md("no rows")
    names = list(rows[0])
    lines = [names, ["--"] * len(names), *[[_cell(row[name]) for name in names] for row in rows]]
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in lines))


def facts_table(facts: Mapping[str, object]) -> dg.MarkdownMetadataValue:
    """Named values as a Markdown table of two columns."""
    return table([{"measure": name, "value": str(value)} for name, value in facts.items()])


def curves(history: pl.DataFrame, *, x: str, skip: Sequence[str] = ("updates",)) -> dg.MarkdownMetadataValue:
    """A picture of a training history: one panel for each of its numbers over column `x`."""
    # Here, as everywhere in the assets, so that loading the definitions does not load matplotlib.
    from archetype_dagster.reporting.plots import learning_curves

    numeric = [name for name, dtype in history.schema.items() if dtype.is_numeric() and name not in (x, *skip)]
    return picture(learning_curves(history, {name: [name] for name in numeric}, x=x), "training curves")


def closing_values(history: pl.DataFrame, *, best: str) -> Metadata:
    """The best value of column `best`, with its row, and the number of evaluations."""
    row = history.sort(best, descending=True, nulls_last=True, maintain_order=True).row(0, named=True)
    return {
        "evaluations": history.height,
        **{name: value for name, value in row.items() if isinstance(value, int | float)},
    }


def tracking_facts(tracker: Tracker) -> Metadata:
    """Where the run is recorded, and what of it is not."""
    facts: Metadata = {}
    if tracker.address is not None:
        web = tracker.address.startswith(("http://", "https://"))
        facts["mlflow_run"] = dg.MetadataValue.url(tracker.address) if web else tracker.address
    if tracker.missing:
        facts["mlflow_missing"] = tracker.missing
    return facts


def numeric_values(metadata: Mapping[str, MetadataEntry]) -> dict[str, float]:
    """The plain numbers among the metadata."""
    return {
        name: float(value)
        for name, value in metadata.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _cell(value: object) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
