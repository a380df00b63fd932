"""The evaluation report of one pair: numbers as JSON, CSV and Parquet, and one self-contained HTML page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from archetype_dagster.artifacts import write_bytes_atomically, write_json
from archetype_dagster.backtest.evaluation import Evaluation
from archetype_dagster.reporting.content import VariantRow, archetype_rows, monthly_returns, variant_rows
from archetype_dagster.reporting.pictures import behaviour_examples, evaluation_pictures
from archetype_dagster.reporting.plots import ArchetypeExample
from archetype_dagster.reporting.rendering import money_decimals, percent, ratio, render
from archetype_dagster.reporting.run_facts import book_name, run_facts, run_span, source_name
from archetype_dagster.settings import Settings
from archetype_dagster.types import JsonDict

METRICS_FILE: Final = "metrics.json"
LEDGER_FILE: Final = "ledger.parquet"
EXAMPLES_FILE: Final = "archetype_examples.parquet"
REPORT_FILE: Final = "report.html"

# Two examples each of two archetypes, as in the paper's figure.
_FIGURE_2: Final = (2, 2)


def write_report(
    evaluation: Evaluation, directory: Path, *, settings: Settings, provenance: Mapping[str, str] | None = None
) -> JsonDict:
    """Write the report into an existing folder; the same evaluation gives the same bytes.

    Files: metrics.json and metrics.csv (every variant), net_values.parquet (every variant, bar by bar),
    ledger.parquet and ledger.csv (the full policy, bar by bar), archetype_examples.parquet (the horizons of
    Figure 2), report.html.

    Args:
        evaluation: the test split, traded by every variant.
        directory: existing folder.
        settings: the run's settings.
        provenance: further lines for the page, e.g. hashes of data and checkpoints by name.

    Returns:
        The content of metrics.json.

    Raises:
        ValueError: a row on which ACR = ASR AVOL / MDD does not hold.
    """
    rows = variant_rows(evaluation)
    summary = summarise(evaluation, rows, settings)
    write_json(directory / METRICS_FILE, summary)
    table = pl.DataFrame([{"variant": name, **values} for name, values in summary["variants"].items()])
    write_table(directory / "metrics.csv", table)
    ledger = evaluation.full.ledger.frame()
    write_table(directory / "ledger.csv", ledger)
    write_table(directory / LEDGER_FILE, ledger)
    write_table(directory / "net_values.parquet", net_values(rows))
    write_table(directory / EXAMPLES_FILE, example_rows(behaviour_examples(evaluation, *_FIGURE_2)))
    page = render("report.html", _page(evaluation, rows, settings, provenance or {}))
    write_bytes_atomically(directory / REPORT_FILE, page.encode())
    return summary


def summarise(evaluation: Evaluation, rows: Sequence[VariantRow], settings: Settings) -> JsonDict:
    """The content of metrics.json: facts of the run and every variant's numbers; fractions, not percent."""
    ledger = evaluation.variants["always_flat"].ledger
    return {
        "pair": evaluation.pair,
        "quote": settings.pair(evaluation.pair).quote,
        "hindsight": evaluation.hindsight,
        "source": settings.market.source,
        "book_sources": list(evaluation.book_sources),
        "first_bar": f"{ledger.timestamps[0]}Z",
        "last_bar": f"{ledger.timestamps[-1]}Z",
        "bars": evaluation.bars,
        "periods_per_year": evaluation.periods_per_year,
        "initial_capital": ledger.initial_capital,
        "max_position": evaluation.max_position,
        "base_code": evaluation.base_code,
        "code_usage": evaluation.code_usage.tolist(),
        "overrides": evaluation.overrides,
        "seed": settings.seed,
        "settings_hash": settings.content_hash,
        "variants": {row.name: row.as_dict() for row in rows},
    }


def example_rows(examples: Sequence[ArchetypeExample]) -> pl.DataFrame:
    """Example horizons as rows: `example`, `code`, `title`, `initial_action`, and `mark` and `action` bar by bar."""
    schema = {
        "example": pl.Int64(),
        "code": pl.Int64(),
        "title": pl.String(),
        "initial_action": pl.Int8(),
        "mark": pl.Float64(),
        "action": pl.Int8(),
    }
    rows = [
        (number, example.code, example.title, example.initial_action, mark, action)
        for number, example in enumerate(examples)
        for mark, action in zip(example.mark.tolist(), example.actions.tolist(), strict=True)
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")


def net_values(rows: Sequence[VariantRow]) -> pl.DataFrame:
    """Net value of every variant by bar, quote units; null after ruin."""
    longest = max((row.ledger for row in rows), key=len)
    frame = longest.frame().select("timestamp")
    return frame.with_columns(
        pl.Series(row.name, row.ledger.net_value).extend_constant(None, len(longest) - len(row.ledger)) for row in rows
    )


def _page(
    evaluation: Evaluation, rows: Sequence[VariantRow], settings: Settings, provenance: Mapping[str, str]
) -> dict[str, Any]:
    by_name = {row.name: row for row in rows}
    full = by_name["full"]
    archetypes = archetype_rows(evaluation)
    overrides = int(np.count_nonzero(evaluation.decisions.override_rows >= 0))
    return {
        "pair": evaluation.pair,
        "quote": settings.pair(evaluation.pair).quote,
        "full": full,
        "span": run_span(evaluation, settings),
        "verdict": _verdict(full, rows),
        "source": source_name(settings.market.source),
        "book_source": book_name(evaluation.book_sources),
        "settings_hash": settings.content_hash,
        "seed": settings.seed,
        "tiles": _tiles(full, by_name["buy_and_hold"]),
        "boundary": "carried from horizon to horizon; every change of position pays the book and the commission"
        if settings.execution.horizon_boundary == "carry"
        else "closed at each horizon's end, at its cost",
        "decimals": money_decimals(full.ledger.initial_capital),
        "random_draws": len(evaluation.random_draws),
        "groups": [
            {"hindsight": flag, "rows": group}
            for flag in (False, True)
            if (group := [row for row in rows if row.hindsight is flag])
        ],
        "pictures": evaluation_pictures(
            evaluation,
            rows,
            horizon_bars=settings.planner.horizon_bars,
            examples=settings.evaluation.archetype_examples,
        ),
        "monthly": _monthly(by_name),
        "archetypes": {
            "rows": archetypes,
            "used": sum(row.horizons > 0 for row in archetypes),
            "horizons": len(evaluation.decisions.codes),
            "overrides": overrides,
            "override_share": overrides / len(evaluation.decisions.codes),
        },
        "horizon_bars": settings.planner.horizon_bars,
        "bars_per_year": f"{evaluation.periods_per_year:,.0f}",
        "facts": run_facts(evaluation, settings, provenance),
    }


def _verdict(full: VariantRow, rows: Sequence[VariantRow]) -> str:
    if full.hindsight:
        return "The full policy reads the future and is not ranked."
    if full.ruined:
        return "The full policy lost its whole capital."
    result = f"The full policy returned {percent(full.metrics.total_return, True)}"
    if full.metrics.sharpe is None:
        return f"{result}; its Sharpe ratio is undefined, so it has no rank."
    honest = [row for row in rows if not row.hindsight]
    rivals = [row.metrics.sharpe for row in honest if row.metrics.sharpe is not None and not row.ruined]
    ahead = sum(sharpe > full.metrics.sharpe for sharpe in rivals)
    return (
        f"{result} at a Sharpe ratio of {ratio(full.metrics.sharpe)}, "
        f"number {ahead + 1} by Sharpe ratio among {len(honest)} tradable variants."
    )


def _tiles(full: VariantRow, beside: VariantRow) -> list[dict[str, str]]:
    shown = (
        ("Total return", "total_return", lambda value: percent(value, True)),
        ("Sharpe", "sharpe", ratio),
        ("Max drawdown", "max_drawdown", percent),
        ("Volatility a year", "annual_volatility", percent),
        ("Calmar", "calmar", ratio),
        ("Sortino", "sortino", ratio),
    )
    total = full.metrics.total_return
    tone = "hind" if full.hindsight else "gain" if total > 0 else "loss" if total < 0 else ""
    return [
        {
            "label": label,
            "value": form(getattr(full.metrics, name)),
            "beside": f"buy and hold {form(getattr(beside.metrics, name))}",
            "tone": tone if name == "total_return" else "",
        }
        for label, name, form in shown
    ]


def _monthly(by_name: Mapping[str, VariantRow]) -> dict[str, Any]:
    """Months of the honest rows that trade, and of the full policy whatever it is."""
    shown = [row for row in by_name.values() if row.name == "full" or not (row.hindsight or row.name == "always_flat")]
    returns = [monthly_returns(row.ledger) for row in shown]
    months = monthly_returns(by_name["always_flat"].ledger)
    return {
        "rows": shown,
        "months": [{"label": month, "returns": [row.get(month) for row in returns]} for month in months],
    }


def write_table(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame atomically as Parquet or CSV, by the file's suffix."""
    buffer = io.BytesIO()
    if path.suffix == ".parquet":
        frame.write_parquet(buffer)
    else:
        frame.write_csv(buffer)
    write_bytes_atomically(path, buffer.getvalue())
