"""Blocking checks: each looks at an artifact as it lies on disk and stops what would build on a broken one.

Checks import what they compute with when they run, so that the graph is drawn at once.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final, cast

import dagster as dg
import numpy as np
import polars as pl

from archetype_dagster.artifacts import Artifact, read_json
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.pipeline.stages import baseline_stage
from archetype_dagster.settings import Settings
from archetype_dagster.settings.baseline_names import BASELINES
from archetype_dagster.types import JsonDict
from assets.execution import PAIR_PARTITIONS, RESOURCE_KEYS, StageResources
from assets.metadata import facts_table


def stage_check(
    asset: str, *inputs: str, blocking: bool = True
) -> Callable[[Callable[..., Any]], dg.AssetChecksDefinition]:
    """Decorator: a check of `asset`, one verdict a pair, that may look at `inputs` besides; it stops what follows."""

    def decorate(function: Callable[..., Any]) -> dg.AssetChecksDefinition:
        with warnings.catch_warnings():
            # Without it a verdict on one pair would overwrite that on another.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            return dg.asset_check(
                asset=asset,
                blocking=blocking,
                partitions_def=PAIR_PARTITIONS,
                additional_ins={name: dg.AssetIn(name, dagster_type=Artifact) for name in inputs},
                required_resource_keys=RESOURCE_KEYS,
            )(function)

    return decorate


@stage_check("market_bars")
def bars_sane(context: dg.AssetCheckExecutionContext, market_bars: Artifact) -> dg.AssetCheckResult:
    """Prices, times and books obey every rule, and no spread is zero or negative."""
    from archetype_dagster.market.validation import validate_bars
    from archetype_dagster.pipeline.inputs import bars_of

    bars = bars_of(market_bars)
    try:
        report = validate_bars(bars, bar_minutes=_settings(context).market.bar_minutes)
    except ArchetypeError as error:
        return _verdict(False, str(error), {})
    closed = bars.filter(pl.col("ask1_price") <= pl.col("bid1_price")).height
    return _verdict(closed == 0, f"{closed} of {report.rows} bars have a spread of zero or less", report.as_dict())


@stage_check("feature_table")
def features_finite(context: dg.AssetCheckExecutionContext, feature_table: Artifact) -> dg.AssetCheckResult:
    """Every feature, mark and cost is a finite number, and no trade is free or paid for."""
    from archetype_dagster.market.features import FEATURE_NAMES
    from archetype_dagster.pipeline.inputs import table_of

    features = table_of(feature_table)
    values = features.features.select(*FEATURE_NAMES, "mark").to_numpy()
    costs = features.costs.drop("timestamp").to_numpy()
    infinite = int((~np.isfinite(values)).sum() + (~np.isfinite(costs)).sum())
    negative = int((costs < 0).sum())
    states = features.dataset(_settings(context)).states
    scaled = int((~np.isfinite(states)).sum())
    return _verdict(
        infinite == negative == scaled == 0,
        f"{infinite} values are not finite, {scaled} scaled ones, {negative} costs are negative",
        {"rows": features.features.height},
    )


@stage_check("dp_trajectories", "feature_table")
def plans_replay(
    context: dg.AssetCheckExecutionContext, dp_trajectories: Artifact, feature_table: Artifact
) -> dg.AssetCheckResult:
    """Every plan obeys its trade constraint and replaying it earns exactly the planned value."""
    from archetype_dagster.pipeline.inputs import splits_of
    from archetype_dagster.planning import Trajectories, verify_trajectories

    settings = _settings(context)
    train = splits_of(feature_table, settings).train
    audit = verify_trajectories(Trajectories.load(dp_trajectories.directory), train, settings.planner)
    text = f"{audit.trajectories} plans, largest error {audit.largest_error:.1e}"
    return _verdict(audit.passed, text, audit.as_dict())


@stage_check("vq_codebook")
def codebook_alive(context: dg.AssetCheckExecutionContext, vq_codebook: Artifact) -> dg.AssetCheckResult:
    """At least half of the codes are in use, and every code is a finite vector."""
    from archetype_dagster.codebook import Codebook

    codebook = Codebook.load(vq_codebook.directory)
    spread = codebook.usage
    finite = bool(np.isfinite(codebook.codes).all())
    text = f"{spread.used} of {codebook.num_codes} codes in use, perplexity {spread.perplexity:.2f}"
    facts = {"counts": spread.counts.tolist(), "finite": finite}
    return _verdict(finite and not spread.alarm, text, facts)


@stage_check("refinement_checkpoint", "market_bars", "feature_table", "vq_codebook", "selection_checkpoint")
def leak_check(
    context: dg.AssetCheckExecutionContext,
    refinement_checkpoint: Artifact,
    market_bars: Artifact,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
) -> dg.AssetCheckResult:
    """Changing everything after a random time moves no bit of any feature or decision before it."""
    from archetype_dagster.backtest.leaks import LeakStatus
    from archetype_dagster.backtest.tracing import check_policy
    from archetype_dagster.pipeline.inputs import bars_of, policy_of, table_of

    settings, pair = _settings(context), str(refinement_checkpoint.manifest.pair)
    policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, settings)
    report = check_policy(bars_of(market_bars), settings, pair, table_of(feature_table).scaler, policy)
    passed = report.status is LeakStatus.PASSED
    hindsight = report.status is LeakStatus.HINDSIGHT
    return dg.AssetCheckResult(
        passed=passed,
        # A warning does not block: hindsight is allowed to be reported, never to pass as causal.
        severity=dg.AssetCheckSeverity.WARN if hindsight else dg.AssetCheckSeverity.ERROR,
        description=f"{report.status.value}: {report.reason}",
        metadata={"status": report.status.value, "facts": facts_table(report.as_dict())},
    )


@stage_check("evaluation_report")
def ledger_reconciles(context: dg.AssetCheckExecutionContext, evaluation_report: Artifact) -> dg.AssetCheckResult:
    """Rewards sum to the change of net value, cash and positions agree, and ACR = ASR AVOL / MDD on every row."""
    from archetype_dagster.backtest.ledger import reconcile
    from archetype_dagster.reporting import read_ledger, read_metrics

    summary = read_metrics(evaluation_report.directory)
    commission_rate = _settings(context).execution.commission_rate
    result = reconcile(read_ledger(evaluation_report.directory, commission_rate=commission_rate))
    broken = [name for name, values in summary["variants"].items() if not _calmar_agrees(values)]
    failures = [*result.failures, *(f"{name}: ACR is not ASR AVOL / MDD" for name in broken)]
    text = "; ".join(failures) or f"rewards agree with the net value to {result.relative_error:.1e}"
    return _verdict(not failures, text, result.as_dict())


@stage_check(
    "onnx_policy", "market_bars", "feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"
)
def onnx_parity(
    context: dg.AssetCheckExecutionContext,
    onnx_policy: Artifact,
    market_bars: Artifact,
    feature_table: Artifact,
    vq_codebook: Artifact,
    selection_checkpoint: Artifact,
    refinement_checkpoint: Artifact,
) -> dg.AssetCheckResult:
    """The exported bundle decides as the trained policy does: its graphs in batches, and fed one bar at a time."""
    from archetype_dagster.deployment import check_parity, check_streaming
    from archetype_dagster.pipeline.inputs import bars_of, policy_of, splits_of

    settings = _settings(context)
    policy = policy_of(vq_codebook, selection_checkpoint, refinement_checkpoint, settings)
    validation, directory = splits_of(feature_table, settings).validation, onnx_policy.directory
    report = check_parity(directory, policy, validation)
    streamed = check_streaming(directory, policy, bars_of(market_bars), validation)
    text = (
        f"largest difference {report.max_abs_difference:.1e}, {report.action_mismatches} other actions; "
        f"streamed {streamed.bars} bars, {streamed.other_actions} other actions"
    )
    facts = {**report.as_dict(), **{f"streamed_{name}": value for name, value in streamed.as_dict().items()}}
    return _verdict(report.passed and streamed.passed, text, facts)


@stage_check("method_comparison", "market_bars", "feature_table")
def baselines_causal(
    context: dg.AssetCheckExecutionContext,
    method_comparison: Artifact,
    market_bars: Artifact,
    feature_table: Artifact,
) -> dg.AssetCheckResult:
    """Changing everything after a random time moves no action of any baseline before it."""
    from archetype_dagster.backtest.leaks import LeakStatus
    from archetype_dagster.baselines import load_baseline
    from archetype_dagster.baselines.causality import check_strategies
    from archetype_dagster.pipeline.inputs import bars_of, table_of

    store = cast(StageResources, context.resources).store
    pair = str(method_comparison.manifest.pair)
    strategies = {name: load_baseline(name, store.open(baseline_stage(name), pair).directory) for name in BASELINES}
    scaler = table_of(feature_table).scaler
    report = check_strategies(bars_of(market_bars), _settings(context), pair, scaler, strategies)
    text = f"{report.status.value}: {report.reason}"
    return _verdict(report.status is LeakStatus.PASSED, text, report.as_dict())


@stage_check("trade_audit")
def audit_passes(context: dg.AssetCheckExecutionContext, trade_audit: Artifact) -> dg.AssetCheckResult:
    """The policy's trades could have happened: every rule of the audit holds at every bar."""
    from archetype_dagster.studies.auditing import AUDIT_FILE

    found = read_json(trade_audit.path(AUDIT_FILE))
    text = "; ".join(found["failures"]) or f"{len(found['rules'])} rules hold at {found['bars']} bars"
    return _verdict(found["passed"], text, {"trips": found["trips"]})


@stage_check("trade_audit")
def engines_agree(context: dg.AssetCheckExecutionContext, trade_audit: Artifact) -> dg.AssetCheckResult:
    """Other people's engines come to the same positions and net values from the same signals."""
    from archetype_dagster.studies.auditing import CROSS_CHECKS_FILE

    checks = read_json(trade_audit.path(CROSS_CHECKS_FILE))
    differing = [check["engine"] for check in checks if not check["passed"]]
    text = "; ".join(f"{check['engine']} differs by up to {check['largest_difference']:.1e}" for check in checks)
    if not checks:
        return dg.AssetCheckResult(
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description="no other engine is installed: pip install 'archetype-dagster[crosscheck]'",
        )
    return _verdict(not differing, text, {"engines": ", ".join(check["engine"] for check in checks)})


def _settings(context: dg.AssetCheckExecutionContext) -> Settings:
    return cast(StageResources, context.resources).settings.load()


def _calmar_agrees(values: JsonDict) -> bool:
    if values["calmar"] is None or values["sharpe"] is None:
        return True
    expected = values["sharpe"] * values["annual_volatility"] / values["max_drawdown"]
    return bool(abs(values["calmar"] - expected) <= 1e-9 * max(1.0, abs(expected)))


def _verdict(passed: bool, description: str, facts: JsonDict) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=passed, description=description, metadata={"facts": facts_table(facts)})


CHECKS: Final = (
    bars_sane,
    features_finite,
    plans_replay,
    codebook_alive,
    leak_check,
    onnx_parity,
    ledger_reconciles,
    baselines_causal,
    audit_passes,
    engines_agree,
)
