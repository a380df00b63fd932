"""All pairs side by side: methods and variants ranked within each pair, what reads the future listed apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from archetype_dagster.artifacts import write_bytes_atomically, write_json
from archetype_dagster.reporting.content import VARIANT_LABELS
from archetype_dagster.reporting.method_board import board_page, method_leaderboard
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.rendering import render
from archetype_dagster.reporting.report import write_table
from archetype_dagster.reporting.run_facts import book_name, source_name, tested_span
from archetype_dagster.types import JsonDict

LEADERBOARD_FILE: Final = "leaderboard.html"

_METRICS: Final = ("total_return", "annual_volatility", "max_drawdown", "sharpe", "calmar", "sortino")
_SCHEMA: Final = {
    "pair": pl.String,
    "rank": pl.Int64,
    "variant": pl.String,
    "hindsight": pl.Boolean,
    **dict.fromkeys(_METRICS, pl.Float64),
    "ruined": pl.Boolean,
    "ruin": pl.String,
    "trades": pl.Int64,
    "settings_hash": pl.String,
}


def leaderboard(metrics: Mapping[str, JsonDict]) -> pl.DataFrame:
    """One row a pair and variant: ranked ones first, by pair and rank, then the hindsight ones.

    Within a pair the rank goes by Sharpe ratio, best first; variants with an undefined one and ruined
    ones follow without a rank, and so do those that read the future, which never rank.

    Args:
        metrics: content of metrics.json by pair.

    Returns:
        pair, rank (null where there is none), variant, hindsight, the six metrics as fractions, ruined,
        ruin (in words), trades, settings_hash.

    Raises:
        ValueError: no pair.
    """
    if not metrics:
        raise ValueError("leaderboard needs at least one pair, got none")
    rows = [
        {"pair": pair, "variant": variant, "settings_hash": report["settings_hash"], **values}
        for pair, report in metrics.items()
        for variant, values in sorted(report["variants"].items(), key=lambda item: list(VARIANT_LABELS).index(item[0]))
    ]
    frame = pl.DataFrame(rows, schema_overrides={key: kind for key, kind in _SCHEMA.items() if key != "rank"})
    ranked = pl.col("sharpe").is_not_null() & ~pl.col("hindsight") & ~pl.col("ruined")
    rank = pl.when(ranked).then("sharpe").rank("min", descending=True).over("pair", "hindsight").cast(pl.Int64)
    return (
        frame.with_columns(rank=rank)
        .select(*_SCHEMA)
        .sort("hindsight", "pair", "rank", nulls_last=True, maintain_order=True)
    )


def write_leaderboard(
    metrics: Mapping[str, JsonDict], directory: Path, results: Mapping[str, PairResults] | None = None
) -> pl.DataFrame:
    """Write leaderboard.parquet, .csv, .json and the page into an existing folder; returns the frame.

    Args:
        metrics: content of metrics.json by pair.
        directory: existing folder.
        results: comparisons of methods by pair, with all their seeds; where given, they head the page and are
            written as methods.parquet, .csv and .json too.
    """
    frame = leaderboard(metrics)
    write_table(directory / "leaderboard.parquet", frame)
    write_table(directory / "leaderboard.csv", frame)
    write_json(directory / "leaderboard.json", frame.to_dicts())
    content = {**_page(metrics, frame), "methods": None}
    if results:
        methods = method_leaderboard(results)
        write_table(directory / "methods.parquet", methods)
        write_table(directory / "methods.csv", methods)
        write_json(directory / "methods.json", methods.to_dicts())
        content["methods"] = board_page(results, methods)
    page = render("leaderboard.html", content)
    write_bytes_atomically(directory / LEADERBOARD_FILE, page.encode())
    return frame


def _page(metrics: Mapping[str, JsonDict], frame: pl.DataFrame) -> dict[str, Any]:
    rows = [{**row, "label": VARIANT_LABELS.get(row["variant"], row["variant"])} for row in frame.iter_rows(named=True)]
    pairs = [
        {
            "pair": pair,
            "quote": report["quote"],
            "source": source_name(report["source"]),
            "book": book_name(report["book_sources"]),
            "span": tested_span(report["first_bar"], report["last_bar"]),
            "bars": report["bars"],
            "settings_hash": report["settings_hash"],
            "seed": report["seed"],
            "rows": [row for row in rows if row["pair"] == pair and not row["hindsight"]],
        }
        for pair, report in sorted(metrics.items())
    ]
    return {
        "pairs": pairs,
        "bounds": [row for row in rows if row["hindsight"]],
        "same_settings": len({report["settings_hash"] for report in metrics.values()}) == 1,
    }
