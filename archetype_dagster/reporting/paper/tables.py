"""The paper's tables and figures from what was run: exact numbers as JSON and CSV, one page and one Markdown file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import write_bytes_atomically, write_json
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.reporting.paper.certainty_sheets import certainty_sheets
from archetype_dagster.reporting.paper.figure_sheets import behaviour_sheet, variants_over_time_sheet
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.printed import PaperResults, paper_results
from archetype_dagster.reporting.paper.rows import STUDIES_OF, ResultRow, method_rows, pair_order, variant_rows
from archetype_dagster.reporting.paper.sheets import HINDSIGHT, NOT_RUN, Sheet, markdown
from archetype_dagster.reporting.paper.table_sheets import methods_sheet, variants_sheet
from archetype_dagster.reporting.paper.verdict import standing_over_pairs, verdict
from archetype_dagster.reporting.rendering import render
from archetype_dagster.reporting.report import write_table
from archetype_dagster.types import JsonDict

TABLES_PAGE: Final = "tables.html"
TABLES_MARKDOWN: Final = "tables.md"
TABLES_JSON: Final = "tables.json"
TABLES_CSV: Final = "tables.csv"


@dataclass(frozen=True)
class PaperTables:
    """Everything that the page shows, as numbers.

    Attributes:
        profile: name of the budget profile.
        printed: the paper's figures.
        results: what was run, by pair in the paper's order.
        rows: rows of table_1 to table_4.
        verdicts: sentences by pair.
    """

    profile: str
    printed: PaperResults
    results: Mapping[str, PairResults]
    rows: Mapping[str, tuple[ResultRow, ...]]
    verdicts: Mapping[str, tuple[str, ...]]

    @property
    def summary(self) -> str:
        """Where ArchetypeTrader stands over all pairs, in a sentence."""
        return standing_over_pairs(self.rows["table_1"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why ours and the printed figures are not the same experiment."""
        facts = {pair: result.comparison.facts for pair, result in self.results.items()}
        synthetic = [pair for pair, of in facts.items() if of["source"] == "synthetic"]
        modelled = [pair for pair, of in facts.items() if "modelled" in of["book_sources"]]
        found = ["Printed figures come from the authors' data and programs: compare order and sign, not digits."]
        if synthetic:
            found.append(f"{', '.join(synthetic)}: the market is synthetic, so its figures say nothing of a real one.")
        if modelled:
            found.append(f"{', '.join(modelled)}: order books are modelled, not recorded, so costs are estimates.")
        return tuple(found)

    def sheets(self) -> list[Sheet]:
        """Tables and figures, then how certain they are; pictures are drawn here."""
        shown = (self.results, self.profile)
        return [
            methods_sheet(self.rows["table_1"], *shown, self.printed),
            *(variants_sheet(table, self.rows[table], *shown) for table in STUDIES_OF),
            behaviour_sheet(*shown),
            variants_over_time_sheet(*shown),
            *certainty_sheets(*shown),
        ]

    def as_dict(self) -> JsonDict:
        """The exact numbers, fractions and not percent, ready for JSON."""
        return {
            "paper": {"title": self.printed.title, "doi": self.printed.doi},
            "profile": self.profile,
            "summary": self.summary,
            "warnings": list(self.warnings),
            "verdicts": {pair: list(sentences) for pair, sentences in self.verdicts.items()},
            "pairs": {pair: _pair_facts(result) for pair, result in self.results.items()},
            **{table: [row.as_dict() for row in rows] for table, rows in self.rows.items()},
        }

    def frame(self) -> pl.DataFrame:
        """One row per table, pair and row: our metrics (mean over seeds) and the printed ones, as fractions."""
        none = dict.fromkeys(METRICS)
        schema = {
            **{name: pl.String() for name in ("table", "pair", "name", "label")},
            "hindsight": pl.Boolean(),
            "seeds": pl.Int64(),
            "rank": pl.Int64(),
            **{name: pl.Float64() for name in METRICS},
            "printed_rank": pl.Int64(),
            **{f"printed_{name}": pl.Float64() for name in METRICS},
        }
        records = [
            {
                **{name: getattr(row, name) for name in ("pair", "name", "label", "hindsight", "rank", "printed_rank")},
                "table": table,
                "seeds": len(row.runs),
                **(row.ours.as_dict() if row.ours else none),
                **{
                    f"printed_{name}": value for name, value in (row.printed.as_dict() if row.printed else none).items()
                },
            }
            for table, rows in self.rows.items()
            for row in rows
        ]
        return pl.DataFrame([{name: record[name] for name in schema} for record in records], schema=schema)


def paper_tables(
    results: Mapping[str, PairResults], *, profile: str, printed: PaperResults | None = None
) -> PaperTables:
    """Tables 1 to 4 of the paper and a verdict on each pair.

    Args:
        results: what was run, by pair; any pair may be missing and any part of one.
        profile: name of the budget profile that it was run with.
        printed: the paper's figures; None takes the shipped ones.

    Raises:
        ValueError: no pair, or results of one pair under the name of another.
    """
    if not results:
        raise ValueError("paper_tables needs at least one pair, got none")
    for pair, result in results.items():
        if result.pair != pair:
            raise ValueError(f"results of {result.pair} are given as those of {pair}")
    printed = paper_results() if printed is None else printed
    ordered = {pair: results[pair] for pair in pair_order(results, printed) if pair in results}
    methods = tuple(method_rows(ordered, printed))
    return PaperTables(
        profile=profile,
        printed=printed,
        results=ordered,
        rows={"table_1": methods, **{name: tuple(variant_rows(name, ordered, printed)) for name in STUDIES_OF}},
        verdicts={
            pair: tuple(verdict(pair, methods, ordered[pair])) if pair in ordered else (f"{NOT_RUN.capitalize()}.",)
            for pair in pair_order(ordered, printed)
        },
    )


def write_paper_tables(
    results: Mapping[str, PairResults], directory: Path, *, profile: str, provenance: Mapping[str, str] | None = None
) -> PaperTables:
    """Write tables.html, tables.md, tables.json and tables.csv into an existing folder; same inputs, same bytes.

    Args:
        results: what was run, by pair.
        directory: existing folder.
        profile: name of the budget profile.
        provenance: further lines for the page, e.g. the commit, by name.

    Raises:
        ValueError: as `paper_tables`.
    """
    tables = paper_tables(results, profile=profile)
    sheets, lines = tables.sheets(), dict(provenance or {})
    write_json(directory / TABLES_JSON, {**tables.as_dict(), "provenance": lines})
    write_table(directory / TABLES_CSV, tables.frame())
    page = render("paper_tables.html", {"tables": tables, "sheets": sheets, "provenance": lines, "apart": HINDSIGHT})
    write_bytes_atomically(directory / TABLES_PAGE, page.encode())
    write_bytes_atomically(directory / TABLES_MARKDOWN, _markdown(tables, sheets, lines).encode())
    return tables


def _pair_facts(result: PairResults) -> JsonDict:
    walk_forward = result.walk_forward
    return {
        **result.comparison.facts,
        "certainty": result.certainty,
        "seeds": None if result.seeds is None else {"rows": result.seeds.rows, "summary": result.seeds.summary},
        "alignments": None if result.alignments is None else result.alignments.to_dicts(),
        "sensitivities": None if result.sensitivities is None else result.sensitivities.to_dicts(),
        "walk_forward": None if walk_forward is None else walk_forward.facts,
    }


def _markdown(tables: PaperTables, sheets: list[Sheet], provenance: Mapping[str, str]) -> str:
    lines = [
        "# The paper's tables",
        "",
        tables.summary,
        "",
        "\n>\n".join(f"> {warning}" for warning in tables.warnings),
        "",
        *(f"- **{pair}**: {' '.join(sentences)}" for pair, sentences in tables.verdicts.items()),
        *(f"- {name}: {value}" for name, value in provenance.items()),
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join(markdown(sheet) for sheet in sheets)
