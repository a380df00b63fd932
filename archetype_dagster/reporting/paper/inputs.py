"""What the paper's tables are made from: everything that was run on one pair, most of it optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from archetype_dagster.backtest.performance import Performance
from archetype_dagster.reporting.plots import ArchetypeExample
from archetype_dagster.studies.comparison import MethodComparison
from archetype_dagster.studies.seeds import SeedStudy
from archetype_dagster.studies.tables import STUDIES, StudyTable
from archetype_dagster.studies.windows import WalkForward
from archetype_dagster.types import JsonDict

_SAME = 1e-9


@dataclass(frozen=True)
class PairResults:
    """What was run on one pair; what is left out reads "not run" in the tables, or is not shown.

    Attributes:
        comparison: every method on the same test bars.
        certainty: `Robustness.as_dict()` of the policy's account, the content of robustness.json.
        sensitivities: the frame of `sensitivities`.
        alignments: `Alignments.summary()`.
        studies: tables by key of `STUDIES`, one table per seed.
        seeds: every method that draws, once per seed.
        walk_forward: the retrained policy.
        examples: horizons for Figure 2.
        examples_hindsight: the policy of these horizons reads prices it could not have known.

    Raises:
        ValueError: unknown studies, another pair's study, one run given twice, or metrics of the comparison's
            own seed that differ from the comparison's.
    """

    comparison: MethodComparison
    certainty: JsonDict | None = None
    sensitivities: pl.DataFrame | None = None
    alignments: pl.DataFrame | None = None
    studies: Mapping[str, Sequence[StudyTable]] = field(default_factory=dict)
    seeds: SeedStudy | None = None
    walk_forward: WalkForward | None = None
    examples: Sequence[ArchetypeExample] = ()
    examples_hindsight: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(self.studies.keys() - STUDIES.keys())
        if unknown:
            raise ValueError(f"unknown study {', '.join(unknown)}; choose from {', '.join(STUDIES)}")
        for name, tables in self.studies.items():
            seen: set[tuple[str, int]] = set()
            for table in tables:
                if table.pair != self.pair:
                    raise ValueError(f"{name} must be of pair {self.pair}, got {table.pair}")
                runs = {(run, facts["seed"]) for run, facts in table.runs.items()}
                if runs & seen:
                    raise ValueError(f"{name} of {self.pair} holds {sorted(runs & seen)[0]} twice")
                seen |= runs
        for row in self.seeds.rows if self.seeds else ():
            own = self.comparison.methods.get(row["method"])
            if own and row["seed"] == self.seed and abs(own.performance.total_return - row["total_return"]) > _SAME:
                raise ValueError(
                    f"{row['method']} of {self.pair} with seed {self.seed} returned "
                    f"{own.performance.total_return!r} in the comparison, got {row['total_return']!r} among its seeds"
                )

    @property
    def pair(self) -> str:
        """Traded pair."""
        return self.comparison.pair

    @property
    def seed(self) -> int:
        """Seed of the comparison."""
        return int(self.comparison.facts["seed"])

    def by_seed(self, method: str) -> dict[int, Performance]:
        """Test metrics of one method by seed, lowest first; empty where it was not run."""
        rows = self.seeds.rows if self.seeds else []
        runs = {int(row["seed"]): Performance.from_dict(row) for row in rows if row["method"] == method}
        own = self.comparison.methods.get(method)
        if own:
            runs[self.seed] = own.performance
        return dict(sorted(runs.items()))
