"""Running studies: each run is trained and judged once and then found, so that a study can be stopped and goes on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import polars as pl

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.pipeline.stages import Stage
from archetype_dagster.settings import Settings
from archetype_dagster.studies.results import AccountPath, SplitResult, StudyAccounts, StudyResult
from archetype_dagster.studies.training import StudyRun, trained_policy

Name = TypeVar("Name", bound=Hashable)

# What judging reads; what the training read is in the parents' hashes.
_RESULT: Final = Stage(
    "study_result",
    "studies",
    ("market_bars", "feature_table", "vq_codebook"),
    ("splits", "execution", "planner.horizon_bars", "refinement.override", "pair", "calibration.impact_curve"),
)


def run_study(study: Mapping[Name, StudyRun], pair: str, cache: StageCache) -> dict[Name, StudyResult]:
    """Results of all runs of a study by name, in its order.

    Raises:
        ArchetypeError: a run's own errors; what was finished before it is kept.
    """
    return {name: judged(run, pair, cache) for name, run in study.items()}


def across_seeds(study: Mapping[str, StudyRun], seeds: Sequence[int]) -> dict[tuple[str, int], StudyRun]:
    """Every run of a study with every seed, by name and seed, on one market: that of the run's own seed."""
    return {
        (name, seed): StudyRun(
            run.settings.changed({"seed": seed, "market.seed": run.settings.market_seed}), run.account
        )
        for name, run in study.items()
        for seed in seeds
    }


def judged(run: StudyRun, pair: str, cache: StageCache) -> StudyResult:
    """Train a run, or find it, and account for it on every bar of the validation and the test split.

    Prices, costs and rules are those of `evaluate`; the result is kept in the cache under a key of its settings,
    its data and its phases.

    Args:
        run: what to try.
        pair: traded pair.
        cache: where artifacts and results are kept.

    Raises:
        SettingsError: unknown pair, or a refiner wanted where there is none.
        MarketDataError: a split that is too short.
        ArchetypeError: the computations' own errors.
    """
    settings = run.settings
    policy, parents = trained_policy(run, pair, cache)

    def account(resume: ResumePoint) -> StudyAccounts:
        bars, dates = bars_of(parents[0]), settings.splits
        splits = splits_of(parents[1], settings, sealed=cache.sealed)
        validation, _ = split_accounts(
            bars, splits.validation, policy, settings, (dates.validation_start, dates.validation_end)
        )
        return StudyAccounts(
            validation, *split_accounts(bars, splits.test, policy, settings, (dates.test_start, dates.test_end))
        )

    kept = cache.kept(_RESULT, settings, pair, parents, account)
    found = StudyAccounts.load(kept.directory)
    return StudyResult(pair, run, kept.manifest.key, found.validation, found.test, found.book_sources)


def split_accounts(
    bars: pl.DataFrame,
    dataset: MarketDataset,
    policy: TradingPolicy,
    settings: Settings,
    span: tuple[datetime, datetime],
) -> tuple[SplitResult, tuple[str, ...]]:
    """The policy's accounts on a split, and the sources of its books.

    Args:
        bars: all bars of the pair, segmented.
        dataset: the split's rows.
        policy: the frozen phases.
        settings: what it is judged under.
        span: half-open range of the split's bar ends, UTC.

    Raises:
        MarketDataError: no bar, or no dataset row, in the range.
    """
    accounts = SplitAccounts(bars, dataset, settings, span)
    decisions = decide(policy, dataset)
    by_name = {"no_refinement": decisions.base_actions}
    if policy.refiner is not None:
        by_name["full"] = decisions.actions
    paths = {name: AccountPath.of(accounts, actions) for name, actions in by_name.items()}
    return SplitResult(accounts.priced.timestamps, accounts.horizon_starts, paths), accounts.book_sources
