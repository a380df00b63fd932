"""Tables 1 to 4 as sheets: ours beside the printed figures, what was not run said so, hindsight apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from archetype_dagster.reporting.content import METRIC_COLUMNS
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.printed import PaperResults
from archetype_dagster.reporting.paper.rows import STUDIES_OF, ResultRow
from archetype_dagster.reporting.paper.sheets import (
    NOT_RUN,
    Block,
    Cell,
    Line,
    Sheet,
    metric_cells,
    metric_heads,
)
from archetype_dagster.reporting.rendering import count, ruin_text
from archetype_dagster.reporting.run_facts import book_name, source_name, tested_span
from archetype_dagster.studies.comparison import METHODS, POLICY

_SIX: Final = tuple(name for _, name, _ in METRIC_COLUMNS)
_THREE: Final = ("total_return", "sharpe", "max_drawdown")
_TITLES: Final[Mapping[str, str]] = {
    "table_1": "Table 1: methods",
    "table_2": "Table 2: what Phase I learns, without refinement",
    "table_3": "Table 3: refinement",
    "table_4": "Table 4: horizon h and number of archetypes K",
}
_LEAD: Final = (POLICY, "vq", "full")
_NOT_IN_PAPER: Final = "not in the paper"


def heading(
    results: Mapping[str, PairResults],
    profile: str,
    seeds: Mapping[str, Iterable[int]] | None = None,
    *,
    settings: str = "settings below each name",
) -> tuple[str, ...]:
    """What was run, a line per group of pairs that share it: data, books, span, seeds, profile, settings.

    Args:
        results: what was run, by pair.
        profile: name of the budget profile.
        seeds: seeds by pair where they are not the comparison's; pairs without one are left out.
        settings: where those runs' settings are to be found, in words.
    """
    pairs_of: dict[str, list[str]] = {}
    for pair, result in results.items():
        facts = result.comparison.facts
        shown = sorted(set([result.seed] if seeds is None else seeds.get(pair, ())))
        if not shown:
            continue
        parts = [
            f"data {source_name(facts['source'])}",
            f"order book {book_name(facts['book_sources'])}",
            f"{tested_span(facts['first_bar'], facts['last_bar'])}, {count(facts['bars'])} bars of "
            f"{facts['bar_minutes']} minutes",
            f"{'seed' if len(shown) == 1 else 'mean over seeds'} {', '.join(map(str, shown))}",
            f"profile {profile}",
            f"settings {facts['settings_hash'][:12]}" if seeds is None else settings,
        ]
        pairs_of.setdefault("; ".join(parts), []).append(pair)
    return tuple(f"{', '.join(pairs)}: {text}" for text, pairs in pairs_of.items())


def methods_sheet(
    rows: Sequence[ResultRow], results: Mapping[str, PairResults], profile: str, printed: PaperResults
) -> Sheet:
    """Table 1."""
    broken = [f"{METHODS[name]} on {pair}" for name, pair in printed.broken_identities()]
    return Sheet(
        anchor="table-1",
        title=_TITLES["table_1"],
        facts=heading(results, profile),
        remarks=(
            "Place is by Sharpe ratio among the paper's methods on the pair, ours and in print; ruined accounts and "
            "undefined ratios have none. Every method of ours is judged on the same bars at the same costs.",
            *([f"In print ACR is not ASR AVOL / MDD for {', '.join(broken)}."] if broken else []),
        ),
        label="Method",
        groups=(("Ours", 7), ("Printed", 7)),
        heads=2 * ("Place", *metric_heads(_SIX)),
        blocks=_blocks(rows, _method_line),
    )


def variants_sheet(table: str, rows: Sequence[ResultRow], results: Mapping[str, PairResults], profile: str) -> Sheet:
    """Tables 2, 3 and 4; the last is printed with total returns alone."""
    seeds = {
        pair: [
            run["seed"]
            for study in STUDIES_OF[table]
            for part in result.studies.get(study, ())
            for run in part.runs.values()
        ]
        for pair, result in results.items()
    }
    printed = _THREE if table != "table_4" else _THREE[:1]
    return Sheet(
        anchor=table.replace("_", "-"),
        title=_TITLES[table],
        facts=heading(results, profile, seeds),
        remarks=(_best(rows, "total_return" if table == "table_4" else "sharpe"),),
        label="Variant",
        groups=(("Ours", len(_THREE)), ("Printed", len(printed))),
        heads=(*metric_heads(_THREE), *metric_heads(printed)),
        blocks=_blocks(rows, lambda row: _variant_line(row, printed)),
    )


def _blocks(rows: Sequence[ResultRow], line: Callable[[ResultRow], Line]) -> tuple[Block, ...]:
    """A block per pair, the rows that read the future in one of their own at the end."""
    honest = [row for row in rows if not row.hindsight]
    blocks = [
        Block(tuple(line(row) for row in honest if row.pair == pair), pair)
        for pair in dict.fromkeys(row.pair for row in honest)
    ]
    apart = tuple(line(row) for row in rows if row.hindsight)
    return (*blocks, *([Block(apart, hindsight=True)] if apart else ()))


def _method_line(row: ResultRow) -> Line:
    ours, printed = row.ours, row.printed
    return Line(
        label=_label(row),
        cells=(
            *((Cell(NOT_RUN, "none", 7),) if ours is None else (_place(row), *metric_cells(ours.as_dict(), _SIX))),
            *(
                (Cell(_NOT_IN_PAPER, "printed none", 7),)
                if printed is None
                else (Cell(count(row.printed_rank), "printed"), *metric_cells(printed.as_dict(), _SIX, printed=True))
            ),
        ),
        lead=row.name in _LEAD,
        tags=_tags(row),
    )


def _variant_line(row: ResultRow, beside: tuple[str, ...]) -> Line:
    ours, printed = row.ours, row.printed
    return Line(
        label=_label(row),
        cells=(
            *((Cell(NOT_RUN, "none", len(_THREE)),) if ours is None else metric_cells(ours.as_dict(), _THREE)),
            *(
                (Cell(_NOT_IN_PAPER, "printed none", len(beside)),)
                if printed is None
                else metric_cells(printed.as_dict(), beside, printed=True)
            ),
        ),
        note=f"settings {', '.join(name[:12] for name in row.settings)}" if row.settings else "",
        lead=row.name in _LEAD,
        tags=_tags(row),
    )


def _label(row: ResultRow) -> str:
    return f"{row.pair} {row.label}" if row.hindsight else row.label


def _tags(row: ResultRow) -> tuple[str, ...]:
    loss = ruin_text(sum(run.ruined for run in row.runs.values()), len(row.runs))
    return (*(("hindsight",) if row.hindsight else ()), *((loss,) if loss else ()))


def _place(row: ResultRow) -> Cell:
    if row.printed is None:
        return Cell("")
    return Cell(count(row.rank), "" if row.rank else "none")


def _best(rows: Sequence[ResultRow], metric: str) -> str:
    """Which variant leads on each pair, in ours and in print; a ruined one leads nothing."""
    name = {"sharpe": "Sharpe ratio", "total_return": "total return"}[metric]
    ours, printed = [], []
    for pair in dict.fromkeys(row.pair for row in rows):
        here = [row for row in rows if row.pair == pair]
        honest = [row for row in here if row.ours and not row.hindsight]
        run = {row.label: getattr(row.ours, metric) for row in honest if row.ours and not row.ours.ruined}
        otherwise = "all ruined" if honest else "reads the future" if any(row.ours for row in here) else NOT_RUN
        ours.append(f"{pair} {_leaders(run) or otherwise}")
        shown = {row.label: row.printed.as_dict()[metric] for row in here if row.printed}
        if shown:
            printed.append(f"{pair} {_leaders(shown)}")
    return f"Highest {name}: ours {'; '.join(ours)}. In print {'; '.join(printed)}."


def _leaders(values: Mapping[str, float | None]) -> str:
    defined = {label: value for label, value in values.items() if value is not None}
    leading = [label for label, value in defined.items() if value == max(defined.values())]
    return ", ".join(leading) if leading else "undefined" if values else ""
