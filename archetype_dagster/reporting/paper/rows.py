"""Rows of the paper's Tables 1 to 4: ours by seed beside the printed ones, before anything is formatted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from archetype_dagster.backtest.performance import Performance, mean_performance
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.printed import PaperResults, PrintedMetrics, PrintedTable
from archetype_dagster.studies.comparison import METHODS
from archetype_dagster.types import JsonDict

VARIANT_LABELS: Final[Mapping[str, str]] = {
    "continuous": "Continuous embedding",
    "clustered": "Clustered embedding",
    "vq": "Quantised embedding (VQ)",
    "no_refinement": "Without refinement",
    "without_regret": "Refinement without regret",
    "full": "Full method",
}
# Studies of each table beside their printed rows.
STUDIES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "table_2": ("embedding_study",),
    "table_3": ("refinement_study",),
    "table_4": ("horizon_study", "code_count_study"),
}


@dataclass(frozen=True)
class ResultRow:
    """One row of a table on one pair.

    Attributes:
        pair: traded pair.
        name: method or variant.
        label: name in tables.
        runs: our metrics by seed; empty where it was not run.
        printed: the paper's figures; None where it has no such row.
        hindsight: ours read prices it could not have known.
        settings: settings hash of each of our runs.
        rank: place of ours by Sharpe ratio among the paper's rows on this pair, best first; None where it has none.
        printed_rank: place in print.
    """

    pair: str
    name: str
    label: str
    runs: Mapping[int, Performance]
    printed: PrintedMetrics | None
    hindsight: bool = False
    settings: tuple[str, ...] = ()
    rank: int | None = None
    printed_rank: int | None = None

    @cached_property
    def ours(self) -> Performance | None:
        """Mean over the seeds, a ratio None where it is undefined for any of them; None where it was not run."""
        return mean_performance(self.runs.values()) if self.runs else None

    def as_dict(self) -> JsonDict:
        """The exact numbers by name, fractions and not percent, ready for JSON."""
        return {
            "pair": self.pair,
            "name": self.name,
            "label": self.label,
            "in_paper": self.printed is not None,
            "hindsight": self.hindsight,
            "rank": self.rank,
            "printed_rank": self.printed_rank,
            "ours": None if self.ours is None else self.ours.as_dict(),
            "seeds": [{"seed": seed, **run.as_dict()} for seed, run in self.runs.items()],
            "settings": list(self.settings),
            "printed": None if self.printed is None else self.printed.as_dict(),
        }


def pair_order(results: Iterable[str], printed: PaperResults) -> list[str]:
    """The paper's pairs, then ours that it lacks by name."""
    return [*printed.pairs, *sorted(set(results) - set(printed.pairs))]


def method_rows(results: Mapping[str, PairResults], printed: PaperResults) -> list[ResultRow]:
    """Table 1: the paper's methods on each pair and, where they were run, those that it lacks; ranked by pair."""
    rows: list[ResultRow] = []
    for pair in pair_order(results, printed):
        comparison = results[pair].comparison if pair in results else None
        found = []
        # What the paper lacks stands below what it prints.
        for name in sorted(METHODS, key=lambda name: name not in printed.table_1):
            label = METHODS[name]
            method = comparison.methods.get(name) if comparison else None
            beside = printed.table_1.get(name, {}).get(pair)
            if comparison and method:
                facts = comparison.facts
                runs, settings = {int(facts["seed"]): method.performance}, (facts["settings_hash"],)
                found.append(ResultRow(pair, name, label, runs, beside, method.hindsight, settings))
            elif name in printed.table_1:
                found.append(ResultRow(pair, name, label, {}, beside))
        rows += _ranked(found, set(printed.table_1))
    return rows


def variant_rows(table: str, results: Mapping[str, PairResults], printed: PaperResults) -> list[ResultRow]:
    """Tables 2 to 4: every printed variant, and every one that was run, on each pair; pairs with neither are left out.

    Args:
        table: table_2, table_3 or table_4.
        results: what was run, by pair.
        printed: the paper's figures.
    """
    beside = printed.table(table)
    rows: list[ResultRow] = []
    for pair in pair_order(results, printed):
        tables = [
            run
            for study in STUDIES_OF[table]
            for run in (results[pair].studies.get(study, ()) if pair in results else ())
        ]
        if not tables and not any(pair in row for row in beside.values()):
            continue
        names = dict.fromkeys([*beside, *(name for study in tables for name in study.runs)])
        rows += [
            _variant(pair, name, [study.runs[name] for study in tables if name in study.runs], beside)
            for name in sorted(names, key=_order)
        ]
    return rows


def _variant(pair: str, name: str, runs: Sequence[JsonDict], beside: PrintedTable) -> ResultRow:
    by_seed = sorted(runs, key=lambda run: int(run["seed"]))
    kind, _, value = name.partition("=")
    return ResultRow(
        pair=pair,
        name=name,
        label=VARIANT_LABELS.get(name, f"{kind} = {value}" if value else name),
        runs={int(run["seed"]): Performance.from_dict(run) for run in by_seed},
        printed=beside.get(name, {}).get(pair),
        hindsight=any(run["hindsight"] for run in runs),
        settings=tuple(dict.fromkeys(run["settings_hash"] for run in by_seed)),
    )


def _order(name: str) -> tuple[int, int]:
    """Variants in the paper's order; horizons before numbers of archetypes, each by size."""
    known = list(VARIANT_LABELS)
    kind, _, value = name.partition("=")
    if value.isdigit():
        return len(known) + (kind != "h"), int(value)
    return known.index(name) if name in known else 2 * len(known), 0


def _ranked(rows: Sequence[ResultRow], in_paper: set[str]) -> list[ResultRow]:
    """Rows of one pair with their places; hindsight, ruined and undefined rows have none."""
    ours = {
        row.name: row.ours.sharpe
        for row in rows
        if row.name in in_paper and row.ours and row.ours.sharpe is not None and not (row.hindsight or row.ours.ruined)
    }
    printed = {row.name: row.printed.asr for row in rows if row.printed and row.printed.asr is not None}
    return [replace(row, rank=_place(ours, row.name), printed_rank=_place(printed, row.name)) for row in rows]


def _place(sharpes: Mapping[str, float], name: str) -> int | None:
    return 1 + sum(other > sharpes[name] for other in sharpes.values()) if name in sharpes else None
