"""Figures 2 and 3: how archetypes trade, and the account of each variant of Table 3 over the test span."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from archetype_dagster.reporting import plots
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.rows import VARIANT_LABELS
from archetype_dagster.reporting.paper.sheets import NOT_RUN, Sheet
from archetype_dagster.reporting.paper.table_sheets import heading
from archetype_dagster.reporting.plots import Curve
from archetype_dagster.reporting.rendering import draw
from archetype_dagster.studies.tables import StudyTable

# The full method first, so that every variant has a colour of its own.
_DRAWN = ("full", "no_refinement", "without_regret")
_REFINEMENT = "refinement_study"


def behaviour_sheet(results: Mapping[str, PairResults], profile: str) -> Sheet:
    """Figure 2: price with entries in example horizons."""
    shown = {pair: result for pair, result in results.items() if result.examples}
    return Sheet(
        anchor="figure-2",
        title="Figure 2: how archetypes trade",
        facts=heading(shown, profile),
        remarks=("Base actions on horizons that are spaced evenly in time and not picked by result.",)
        if shown
        else (NOT_RUN,),
        pictures=tuple(
            (
                pair,
                draw(
                    f"{pair}: price with entries in example horizons of its archetypes",
                    plots.archetype_behaviour,
                    result.examples,
                    hindsight=result.examples_hindsight,
                ),
            )
            for pair, result in shown.items()
        ),
    )


def variants_over_time_sheet(results: Mapping[str, PairResults], profile: str) -> Sheet:
    """Figure 3: cumulative return over the test span; one seed a pair, the comparison's where it was run."""
    curves, seeds, missing = {}, {}, []
    for pair, result in results.items():
        table = _table(result)
        runs = [name for name in _DRAWN if table and name in table.runs]
        if not table or not runs:
            missing.append(f"{pair} {NOT_RUN}")
            continue
        absent = [VARIANT_LABELS[name].lower() for name in _DRAWN if name not in runs]
        missing += [f"{pair} {name} {NOT_RUN}" for name in absent]
        seeds[pair] = [table.runs[runs[0]]["seed"]]
        curves[pair] = [_curve(table, name, float(result.comparison.facts["initial_capital"])) for name in runs]
    return Sheet(
        anchor="figure-3",
        title="Figure 3: cumulative return of the variants of Table 3",
        facts=heading(results, profile, seeds, settings="settings in Table 3"),
        remarks=(f"{'; '.join(missing)}.",) if missing else (),
        pictures=tuple(
            (pair, draw(f"{pair}: cumulative return of the variants of Table 3", plots.equity, drawn))
            for pair, drawn in curves.items()
        ),
    )


def _table(result: PairResults) -> StudyTable | None:
    """The refinement study of the comparison's seed, or else of the lowest."""
    tables = sorted(
        result.studies.get(_REFINEMENT, ()), key=lambda table: min(run["seed"] for run in table.runs.values())
    )
    own = [table for table in tables if any(run["seed"] == result.seed for run in table.runs.values())]
    return next(iter([*own, *tables]), None)


def _curve(table: StudyTable, name: str, initial_capital: float) -> Curve:
    values = table.test[name].to_numpy()
    # Nothing is left after ruin, so the curve ends there.
    end = int(np.argmax(values <= 0)) + 1 if (values <= 0).any() else len(values)
    times = table.test.select(pl.col("timestamp").dt.replace_time_zone(None)).to_series().to_numpy()
    return Curve(
        name, VARIANT_LABELS[name], times[:end], values[:end], initial_capital, bool(table.runs[name]["hindsight"])
    )
