"""The methods of every pair by their median over seeds; those that read the future apart and without a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.rendering import ruin_text
from archetype_dagster.studies.comparison import METHODS, POLICY

_SCHEMA: Final = {
    "pair": pl.String(),
    "rank": pl.Int64(),
    "method": pl.String(),
    "label": pl.String(),
    "hindsight": pl.Boolean(),
    "seed": pl.Int64(),
    "seeds": pl.Int64(),
    "median_sharpe": pl.Float64(),
    **dict.fromkeys(METRICS, pl.Float64()),
    "ruined": pl.Boolean(),
}


def method_leaderboard(results: Mapping[str, PairResults]) -> pl.DataFrame:
    """One row a pair, method and seed: ranked methods first, by pair and rank, then the hindsight ones.

    Within a pair the rank goes by the median Sharpe ratio over a method's seeds, best first. A run that was ruined
    or whose ratio is undefined counts below every other; a method whose median is such a run has no rank, and
    neither has one that reads the future.

    Args:
        results: comparisons, with or without further seeds, by pair.

    Returns:
        pair, rank and median_sharpe of the method (null where there is none), method, label, hindsight, seed, seeds
        (their number), the six metrics as fractions, ruined.

    Raises:
        ValueError: no pair.
    """
    if not results:
        raise ValueError("method_leaderboard needs at least one pair, got none")
    rows = [
        {
            "pair": pair,
            "method": name,
            "label": METHODS[name],
            "hindsight": method.hindsight,
            "seed": seed,
            **run.as_dict(),
        }
        for pair, result in sorted(results.items())
        for name, method in result.comparison.methods.items()
        for seed, run in result.by_seed(name).items()
    ]
    schema = {name: kind for name, kind in _SCHEMA.items() if name not in ("rank", "seeds", "median_sharpe")}
    frame = pl.DataFrame(rows, schema=schema)
    standing = pl.when(~pl.col("ruined")).then("sharpe").fill_null(-float("inf")).median()
    methods = (
        frame.group_by("pair", "method", "hindsight", maintain_order=True)
        .agg(standing.alias("median_sharpe"), pl.len().cast(pl.Int64).alias("seeds"))
        .with_columns(pl.when(pl.col("median_sharpe").is_finite()).then("median_sharpe").alias("median_sharpe"))
        .with_columns(
            pl.when(~pl.col("hindsight"))
            .then(pl.col("median_sharpe").rank("min", descending=True).over("pair", "hindsight"))
            .cast(pl.Int64)
            .alias("rank")
        )
    )
    return (
        frame.join(methods.drop("hindsight"), on=("pair", "method"), maintain_order="left")
        .select(*_SCHEMA)
        .sort("hindsight", "pair", "rank", nulls_last=True, maintain_order=True)
    )


def board_page(results: Mapping[str, PairResults], frame: pl.DataFrame) -> dict[str, Any]:
    """What the leaderboard's page shows of the methods; ACR is ASR AVOL / MDD of the row's medians."""
    medians = (
        frame.group_by("hindsight", "pair", "rank", "method", "label", "seeds", "median_sharpe", maintain_order=True)
        .agg(
            pl.col(METRICS).median(),
            pl.col("ruined").sum(),
            pl.col("sharpe").min().alias("lowest"),
            pl.col("sharpe").max().alias("highest"),
        )
        .with_columns(sharpe="median_sharpe")
        .with_columns(
            pl.when(pl.col("max_drawdown") > 0)
            .then(pl.col("sharpe") * pl.col("annual_volatility") / pl.col("max_drawdown"))
            .alias("calmar")
        )
    )
    rows = [
        {**row, "lead": row["method"] == POLICY, "ruin": ruin_text(row["ruined"], row["seeds"])}
        for row in medians.iter_rows(named=True)
    ]
    every = frame.to_dicts() if frame["seeds"].max() != 1 else []
    return {
        "pairs": [
            {
                "pair": pair,
                "quote": result.comparison.facts["quote"],
                "rows": [row for row in rows if row["pair"] == pair and not row["hindsight"]],
            }
            for pair, result in sorted(results.items())
        ],
        "bounds": [row for row in rows if row["hindsight"]],
        "every": every,
    }
