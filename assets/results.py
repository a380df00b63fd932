"""What was run on one pair, gathered from its artifacts for the pages over all pairs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from archetype_dagster.artifacts import Artifact, read_json
from archetype_dagster.studies.comparison import MethodComparison
from archetype_dagster.studies.robustness import ALIGNMENT_SUMMARY_FILE, ROBUSTNESS_FILE, SENSITIVITIES_FILE
from archetype_dagster.studies.seeds import SeedStudy
from archetype_dagster.studies.tables import STUDIES, StudyTable
from archetype_dagster.studies.windows import WalkForward

if TYPE_CHECKING:
    from archetype_dagster.reporting.paper import PairResults


def pair_results(made: Mapping[str, Artifact]) -> "PairResults":
    """The results of a pair whose artifacts, by stage, hold at least its comparison of methods."""
    from archetype_dagster.reporting import read_examples
    from archetype_dagster.reporting.paper import PairResults

    odds, seeds, walk = made.get("robustness"), made.get("seed_study"), made.get("walk_forward")
    report = made.get("evaluation_report")
    return PairResults(
        comparison=MethodComparison.load(made["method_comparison"].directory),
        certainty=None if odds is None else read_json(odds.path(ROBUSTNESS_FILE)),
        sensitivities=None if odds is None else pl.read_parquet(odds.path(SENSITIVITIES_FILE)),
        alignments=None if odds is None else pl.read_parquet(odds.path(ALIGNMENT_SUMMARY_FILE)),
        studies={name: [StudyTable.load(made[name].directory)] for name in STUDIES if name in made},
        seeds=None if seeds is None else SeedStudy.load(seeds.directory),
        walk_forward=None if walk is None else WalkForward.load(walk.directory),
        examples=() if report is None else read_examples(report.directory),
        examples_hindsight=report is not None and bool(report.manifest.facts["hindsight"]),
    )
