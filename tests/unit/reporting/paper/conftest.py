"""Results of a pair made by hand, every optional part given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.alignments import Alignments
from archetype_dagster.backtest.sensitivity import SENSITIVITY_SCHEMA
from archetype_dagster.backtest.statistics import certainty
from archetype_dagster.reporting.paper import PairResults, PaperTables, write_paper_tables
from archetype_dagster.reporting.pictures import behaviour_examples
from archetype_dagster.settings import Settings, StatisticsSettings
from archetype_dagster.studies.comparison import METHODS, POLICY, Method, MethodComparison
from archetype_dagster.studies.seeds import SeedStudy, seed_spreads
from archetype_dagster.studies.tables import StudyTable
from archetype_dagster.studies.windows import WalkForward

PER_YEAR = 52_560.0
STUDY_RUNS = {
    "embedding_study": ("continuous", "clustered", "vq"),
    "refinement_study": ("no_refinement", "without_regret", "full"),
    "horizon_study": ("h=36", "h=72"),
    "code_count_study": ("K=5", "K=10", "K=20"),
}
STATISTICS = StatisticsSettings(bootstrap_samples=100, overfitting_groups=6, overfitting_test_groups=3)


@pytest.fixture(scope="session")
def make_pair(make_evaluation) -> Callable[..., PairResults]:
    """Results of a pair; `whole=False` leaves out every optional part."""

    @cache
    def make(pair: str, *, seed: int = 0, hindsight: bool = False, whole: bool = True) -> PairResults:
        evaluation = make_evaluation(seed=seed, hindsight=hindsight)
        return build_pair(evaluation, pair, hindsight=hindsight, whole=whole)

    return make


@pytest.fixture(scope="session")
def results(make_pair) -> dict[str, PairResults]:
    """One pair with everything, and one whose policy reads the future with nothing but its comparison."""
    return {"BTC": make_pair("BTC"), "DOT": make_pair("DOT", seed=2, hindsight=True, whole=False)}


@pytest.fixture(scope="session")
def written(results, tmp_path_factory) -> tuple[Path, PaperTables]:
    """The folder of tables that were written, and what was written."""
    directory = tmp_path_factory.mktemp("tables")
    return directory, write_paper_tables(results, directory, profile="smoke", provenance={"Commit": "<abc>"})


def build_pair(evaluation, pair: str, *, hindsight: bool, whole: bool) -> PairResults:
    comparison = build_comparison(evaluation, pair, hindsight=hindsight)
    if not whole:
        return PairResults(comparison)
    policy = comparison.methods[POLICY]
    others = {name: method.ledger for name, method in comparison.methods.items() if name != POLICY}
    found = certainty(
        policy.ledger,
        settings=STATISTICS,
        seed=0,
        benchmarks={"buy_and_hold": others["buy_and_hold"]},
        trials={POLICY: policy.ledger, "macd": others["macd"]},
        periods_per_year=PER_YEAR,
    )
    ledgers = [evaluation.variants[name].ledger for name in ("full", "no_refinement", "base_archetype")]
    moved = Alignments(
        timestamps=policy.ledger.timestamps,
        net_values=np.stack([ledger.net_value_path for ledger in ledgers]),
        trades=np.array([ledger.trades for ledger in ledgers]),
        periods_per_year=PER_YEAR,
        hindsight=hindsight,
    )
    return PairResults(
        comparison=comparison,
        certainty={**found.as_dict(), "trial_names": [POLICY, "macd"]},
        sensitivities=sensitivity_frame(policy, hindsight=hindsight),
        alignments=moved.summary(),
        studies={
            study: [study_table(evaluation, pair, names, seed, hindsight=hindsight) for seed in (0, 1)]
            for study, names in STUDY_RUNS.items()
        },
        seeds=seed_study_of(evaluation, pair, comparison, hindsight=hindsight),
        walk_forward=walk_forward(policy),
        examples=behaviour_examples(evaluation, 2, archetypes=2),
        examples_hindsight=hindsight,
    )


def walk_forward(policy: Method) -> WalkForward:
    """The policy's own account as if it had been trained again before its one window."""
    metrics = policy.performance.as_dict()
    facts = {
        "metrics": metrics,
        "trades": policy.ledger.trades,
        "initial_capital": policy.ledger.initial_capital,
        "hindsight": policy.hindsight,
        "windows": [{"window": "2024-01-25T0000", **metrics}],
    }
    return WalkForward(facts, policy.ledger.frame())


def build_comparison(evaluation, pair: str, *, hindsight: bool) -> MethodComparison:
    variants = evaluation.variants
    drawn = ("no_refinement", "base_archetype", "random_archetype")
    ledgers = {name: variants[drawn[index % 3]].ledger for index, name in enumerate(METHODS)}
    ledgers |= {name: variants[name].ledger for name in ("buy_and_hold", "always_flat")}
    ledgers[POLICY] = variants["full"].ledger
    methods = {
        name: Method(name, ledger, ledger.performance(PER_YEAR), hindsight and name == POLICY)
        for name, ledger in ledgers.items()
    }
    ledger = ledgers[POLICY]
    return MethodComparison(
        pair,
        methods,
        {
            "source": "candles",
            "book_sources": ["modelled"],
            "first_bar": f"{ledger.timestamps[0]}Z",
            "last_bar": f"{ledger.timestamps[-1]}Z",
            "bars": len(ledger),
            "bar_minutes": 10,
            "initial_capital": ledger.initial_capital,
            "max_position": ledger.max_position,
            "commission_rate": ledger.commission_rate,
            "quote": "USDT",
            "seed": 0,
            "settings_hash": Settings().content_hash,
        },
    )


def study_table(evaluation, pair: str, names: tuple[str, ...], seed: int, *, hindsight: bool) -> StudyTable:
    drawn = ("no_refinement", "base_archetype", "full", "random_archetype")
    accounts = {name: evaluation.variants[drawn[(index + 3 * seed) % 4]].ledger for index, name in enumerate(names)}
    times = pl.Series("timestamp", next(iter(accounts.values())).timestamps).dt.replace_time_zone("UTC")
    test = pl.DataFrame([times, *(pl.Series(name, ledger.net_value) for name, ledger in accounts.items())])
    return StudyTable(
        pair=pair,
        runs={
            name: {
                "pair": pair,
                "seed": seed,
                "settings_hash": Settings(seed=seed).content_hash,
                "key": f"{name}-{seed}",
                "hindsight": hindsight,
                "book_sources": ["modelled"],
                "account": "full",
                "trades": ledger.trades,
                "validation": {},
                **ledger.performance(PER_YEAR).as_dict(),
            }
            for name, ledger in accounts.items()
        },
        test=test,
        validation=test.clear(),
    )


def seed_study_of(evaluation, pair: str, comparison: MethodComparison, *, hindsight: bool) -> SeedStudy:
    accounts = {0: POLICY, 1: "macd", 2: "imbalance_volume"}
    rows = [
        {"method": POLICY, "seed": seed, **method.performance.as_dict(), "trades": method.ledger.trades}
        for seed, name in accounts.items()
        for method in [comparison.methods[name]]
    ]
    summary = seed_spreads(rows, comparison, confidence=0.95)
    table = study_table(evaluation, pair, ("seed=0", "seed=1", "seed=2"), 0, hindsight=hindsight)
    runs = {name: {**facts, "seed": seed} for seed, (name, facts) in enumerate(table.runs.items())}
    return SeedStudy(replace(table, runs=runs), rows, summary)


def sensitivity_frame(policy: Method, *, hindsight: bool) -> pl.DataFrame:
    metrics = {**policy.performance.as_dict(), "trades": policy.ledger.trades, "hindsight": hindsight}
    rows = [
        {"setting": "commission_rate", "value": "0.0002", "base": True, **metrics},
        {"setting": "commission_rate", "value": "0.001", "base": False, **metrics, "sharpe": None},
        {
            "setting": "depth_policy",
            "value": "reject",
            "base": False,
            "hindsight": hindsight,
            "refused": "bar 7 is thin",
        },
    ]
    return pl.DataFrame(rows, schema=SENSITIVITY_SCHEMA)
