"""What was run, in words: data, account, policy and settings of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Any, Final

from archetype_dagster.backtest.evaluation import Evaluation
from archetype_dagster.reporting.rendering import money, money_decimals
from archetype_dagster.settings import Settings

_SOURCES: Final = {
    "synthetic": "embedded synthetic market",
    "candles": "candles",
    "bars": "bars with their own book",
}
_BOOKS: Final = {"observed": "recorded", "modelled": "modelled, not recorded"}


def source_name(source: str) -> str:
    """Where the bars come from."""
    return _SOURCES.get(source, source)


def book_name(sources: Sequence[str]) -> str:
    """Where the order books come from."""
    return ", ".join(_BOOKS.get(source, source) for source in sources)


def tested_span(first_bar: str, last_bar: str) -> str:
    """First and last test bar as people read them, from the ISO text that reports and comparisons hold."""
    first, last = (bar[:16].replace("T", " ") for bar in (first_bar, last_bar))
    return f"{first} to {last} UTC"


def run_span(evaluation: Evaluation, settings: Settings) -> str:
    """First and last test bar, their number, and where the policy was ruined."""
    first, last = (
        evaluation.variants["always_flat"].ledger.timestamps[at].astype("datetime64[us]").astype(datetime)
        for at in (0, -1)
    )
    text = f"{_moment(first)} to {_moment(last)} UTC, {evaluation.bars:,} bars of {settings.market.bar_minutes} minutes"
    ended = evaluation.full.ledger
    return text if not ended.ruined else f"{text}, the policy ruined at bar {len(ended):,}"


def run_facts(evaluation: Evaluation, settings: Settings, provenance: Mapping[str, str]) -> list[dict[str, Any]]:
    """Groups of (name, value) lines: data, account, policy and run."""
    market, execution, splits = settings.market, settings.execution, settings.splits
    pair = settings.pair(evaluation.pair)
    capital = evaluation.full.ledger.initial_capital
    chosen = "as set" if execution.initial_capital is not None else "m times the first mark price"
    data = {
        "Source": source_name(market.source) + (f", {market.path}" if market.path else ""),
        "Order book": book_name(evaluation.book_sources),
        "Bar length": f"{market.bar_minutes} minutes, labelled by the bar's end, UTC",
        "Training": _range(splits.train_start, splits.train_end),
        "Validation": _range(splits.validation_start, splits.validation_end),
        "Test": _range(splits.test_start, splits.test_end),
    }
    account = {
        "Initial capital": f"{money(capital, money_decimals(capital))} {pair.quote}, {chosen}",
        "Position m": f"{pair.max_position:g} {pair.base}; held short, flat or long",
        "Commission": f"{1e4 * execution.commission_rate:g} bp of the traded notional",
        "Beyond the visible book": execution.depth_policy.replace("_", " "),
        "Execution delay": f"{execution.execution_delay_bars} bars",
        "At a horizon's end": f"{execution.horizon_boundary} the position",
    }
    planner, codebook = settings.planner, settings.codebook
    selection, refinement = settings.selection, settings.refinement
    policy = {
        "Horizon": f"{planner.horizon_bars} bars",
        "Demonstrations": f"{planner.num_trajectories:,}, {planner.trade_constraint.replace('_', ' ')}",
        "Archetypes": f"{codebook.num_codes} codes of {codebook.code_dim} dimensions"
        + ("" if codebook.embedding == "vq" else f", {codebook.embedding}"),
        "Decoder": f"{codebook.decoder}, {codebook.decoding.replace('_', ' ')}"
        + ("; reads the future" if codebook.hindsight else "; causal"),
        "Selection": f"{selection.objective} objective, {selection.total_steps:,} steps, alpha {selection.alpha:g}",
        "Refinement": f"{refinement.objective} objective, {refinement.total_steps:,} steps, {refinement.override} "
        f"override, beta_1 {settings.beta_1(evaluation.pair):g}, beta_2 {refinement.beta_2:g}",
    }
    run = {"Seed": str(settings.seed), "Settings": settings.content_hash, **provenance}
    titles = {"Data": data, "Account": account, "Policy": policy, "Run": run}
    return [{"title": title, "entries": list(entries.items())} for title, entries in titles.items()]


def _range(start: datetime, end: datetime) -> str:
    return f"{_moment(start)} until before {_moment(end)}"


def _moment(moment: datetime) -> str:
    clock = "" if moment.time() == time() else f" {moment:%H:%M}"
    return f"{moment.day} {moment:%b %Y}{clock}"
