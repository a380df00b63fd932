"""The exported policy end to end: what it earns bar by bar against what the trained one earns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archetype_dagster.acceptance.metric import AcceptanceMetric, Target
from archetype_dagster.acceptance.policies import AcceptanceRun
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.deployment import OnnxPolicy, export_policy
from archetype_dagster.deployment.streaming_parity import bars_for_rows, stream_bars
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.pipeline.inputs import bars_of, policy_of, splits_of, table_of
from archetype_dagster.pipeline.stages import STAGES
from archetype_dagster.settings import Settings
from archetype_dagster.studies.runs import across_seeds
from archetype_dagster.studies.training import StudyRun
from archetype_dagster.types import ActionArray, JsonDict


@dataclass(frozen=True)
class _Export:
    policy: TradingPolicy
    scaler: FeatureScaler
    pair: str

    def save(self, directory: Path) -> None:
        export_policy(self.policy, self.scaler, directory, pair=self.pair)


def onnx_pnl_error(run: AcceptanceRun) -> AcceptanceMetric:
    """The largest relative error of a bundle's profit over the seeds, each streamed through onnxruntime bar by bar.

    The error of a seed is |profit of the bundle - profit of the trained policy| / |profit of the trained policy|, both
    accounts from the same capital at the same costs.

    Raises:
        ArchetypeError: the computations' own errors.
    """
    errors: dict[int, float | None] = {}
    by_seed: JsonDict = {}
    seeds = run.settings.seeds[: run.settings.onnx_seeds]
    for (_, seed), study in across_seeds({"": StudyRun(run.baseline)}, seeds).items():
        run.note(f"bundle bar by bar, seed {seed}")
        by_seed[str(seed)] = told = _compare(run, study.settings)
        errors[seed] = told["error"]
    known = [error for error in errors.values() if error is not None]
    return AcceptanceMetric(
        "onnx_pnl_error",
        Target(run.settings.most_pnl_error, exceeded=False, poor=run.settings.poor_pnl_error, unit="of the profit"),
        max(known) if len(known) == len(errors) else None,
        (min(known), max(known)) if known else None,
        "least and largest error over the seeds",
        tuple(errors),
        {"by_seed": by_seed},
    )


def _compare(run: AcceptanceRun, settings: Settings) -> JsonDict:
    kinds = ("market_bars", "feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint")
    parents = run.cache.artifacts(kinds, settings, run.settings.pair)
    market_bars, table, codebook, selector, refiner = parents
    bars, policy = bars_of(market_bars), policy_of(codebook, selector, refiner, settings)
    test = splits_of(table, settings).test
    if run.settings.onnx_bars is not None:
        test = test.rows(slice(0, run.settings.onnx_bars))
    dates = settings.splits
    accounts = SplitAccounts(bars, test, settings, (dates.test_start, dates.test_end))
    exported = _Export(policy, table_of(table).scaler, run.settings.pair)
    bundle = run.cache.kept(STAGES["onnx_policy"], settings, run.settings.pair, parents[1:], lambda _: exported)
    decided = stream_bars(OnnxPolicy.load(bundle.directory), bars_for_rows(bars, test))
    if [one.timestamp.replace(tzinfo=None) for one in decided] != test.timestamps.tolist():
        raise MarketDataError("the bundle decides on other bars than the policy", field="timestamp")
    streamed: ActionArray = np.array([one.action for one in decided], dtype=np.int8)
    trained = decide(policy, test).actions
    found, expected = (_profit(accounts, actions) for actions in (streamed, trained))
    return {
        "error": None if expected == 0 else abs(found - expected) / abs(expected),
        "profit_of_bundle": found,
        "profit_of_policy": expected,
        "bars": len(decided),
        "other_actions": int((streamed != trained).sum()),
    }


def _profit(accounts: SplitAccounts, actions: ActionArray) -> float:
    ledger = accounts.trade(actions)
    return float(accounts.whole_path(ledger)[-1] - ledger.initial_capital)
