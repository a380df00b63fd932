"""The policy and every baseline that draws, trained again with other seeds on one market."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from archetype_dagster.artifacts import read_json, write_json
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.backtest.statistics import seed_summary
from archetype_dagster.baselines import BASELINES, load_baseline
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.pipeline.stages import baseline_stage
from archetype_dagster.settings import Settings
from archetype_dagster.studies.comparison import POLICY, MethodComparison
from archetype_dagster.studies.runs import across_seeds, run_study
from archetype_dagster.studies.tables import StudyTable
from archetype_dagster.studies.training import StudyRun
from archetype_dagster.types import JsonDict

SEEDED: Final = (*(name for name, baseline in BASELINES.items() if baseline.is_learner), "random")
SEEDS_FILE: Final = "seeds.json"
_LOWER_IS_BETTER: Final = frozenset({"annual_volatility", "max_drawdown"})


@dataclass(frozen=True)
class SeedStudy:
    """Every method that draws, once per seed.

    Attributes:
        policy: the full policy's runs, named `seed=...`.
        rows: `method`, `seed`, the six test metrics, `ruined` and `trades`, one row per method and seed.
        summary: per metric the policy's spread over the seeds and how often one of them beats one of each method.
    """

    policy: StudyTable
    rows: list[JsonDict]
    summary: dict[str, JsonDict]

    def save(self, directory: Path) -> None:
        """Write the policy's study and seeds.json into an existing folder."""
        self.policy.save(directory)
        write_json(directory / SEEDS_FILE, {"rows": self.rows, "summary": self.summary})

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or lacks a field."""
        saved = read_json(directory / SEEDS_FILE)
        try:
            return cls(StudyTable.load(directory), saved["rows"], saved["summary"])
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"{directory / SEEDS_FILE} lacks {error}") from error


def seed_study(settings: Settings, pair: str, comparison: MethodComparison, cache: StageCache) -> SeedStudy:
    """Train the policy and the drawing baselines once per seed of `studies.seeds`, and judge them on the test split.

    Args:
        settings: the run's settings.
        pair: traded pair.
        comparison: the methods at the run's own seed; what does not draw is compared with from there.
        cache: where everything trained is kept, so that the study can be stopped and goes on.

    Raises:
        ArchetypeError: the computations' own errors.
    """
    runs = across_seeds({"full": StudyRun(settings)}, settings.studies.seeds)
    results = run_study(runs, pair, cache)
    rows = [
        {
            "method": POLICY,
            "seed": seed,
            **result.performance().as_dict(),
            "trades": result.test.accounts[result.run.account].trades,
        }
        for (_, seed), result in results.items()
    ]
    rows += _baseline_rows(settings, pair, cache)
    table = StudyTable.of(pair, {f"seed={seed}": result for (_, seed), result in results.items()})
    return SeedStudy(table, rows, seed_spreads(rows, comparison, confidence=settings.statistics.confidence))


def seed_spreads(rows: Sequence[JsonDict], comparison: MethodComparison, *, confidence: float) -> dict[str, JsonDict]:
    """Per metric the policy's spread over its seeds, and how often one of them beats one of each method.

    Every seed is set against every seed of a method that draws, and against the one account of any other. As on the
    leaderboard a run that was ruined counts below every other. Undefined runs of the policy beat nothing, those of a
    method are left out.

    Args:
        rows: `method`, `seed`, the six test metrics and `ruined`, one row per method and seed.
        comparison: the methods at one seed.
        confidence: coverage of the intervals.
    """
    return {metric: _spread(metric, rows, comparison, confidence) for metric in METRICS}


def _spread(metric: str, rows: Sequence[JsonDict], comparison: MethodComparison, confidence: float) -> JsonDict:
    better = metric not in _LOWER_IS_BETTER
    worst = -math.inf if better else math.inf
    rivals: dict[str, list[float]] = {}
    for name, method in comparison.methods.items():
        if name != POLICY:
            runs = [row for row in rows if row["method"] == name] or [method.performance.as_dict()]
            found = [worst if run["ruined"] else run[metric] for run in runs]
            rivals[name] = [value for value in found if value is not None]
    own = [row for row in rows if row["method"] == POLICY]
    return seed_summary(
        {row["seed"]: row[metric] for row in own},
        rivals,
        ruined=[row["seed"] for row in own if row["ruined"]],
        confidence=confidence,
        higher_is_better=better,
    ).as_dict()


def _baseline_rows(settings: Settings, pair: str, cache: StageCache) -> list[JsonDict]:
    dates, rows = settings.splits, []
    bars, table = cache.artifacts(("market_bars", "feature_table"), settings, pair)
    test = splits_of(table, settings).test
    accounts = SplitAccounts(bars_of(bars), test, settings, (dates.test_start, dates.test_end))
    for seed in settings.studies.seeds:
        seeded = settings.changed({"seed": seed, "market.seed": settings.market_seed})
        for name in SEEDED:
            fitted = cache.artifact(baseline_stage(name), seeded, pair)
            ledger = accounts.trade(load_baseline(name, fitted.directory).actions(test))
            metrics = ledger.performance(settings.market.bars_per_year)
            rows.append({"method": name, "seed": seed, **metrics.as_dict(), "trades": ledger.trades})
    return rows
