"""The jobs, and running them in this process with an outcome that a person can read."""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import dagster as dg

from archetype_dagster.errors import SettingsError
from archetype_dagster.pipeline.stages import (
    BEST_SETTINGS,
    CORE_STAGES,
    JUDGING_GROUPS,
    POLICIES_GROUP,
    RAW_BARS,
    RECENT_EVALUATION,
    REGISTRY_GROUP,
    STAGES,
    SWEEP_STUDY,
    SWEEPS_GROUP,
    WALK_FORWARD_WINDOW,
)
from archetype_dagster.settings import Settings

PIPELINE: Final = "pipeline"
MONTHS: Final = "ingest_months"
WINDOWS: Final = "walk_forward_windows"
POLICIES: Final = "train_policies"
CHAMPION: Final = "compare_with_champion"
EXPORT: Final = "export_policy"
MAX_RUNTIME_TAG: Final = "dagster/max_runtime"
REASON_TAG: Final = "archetype/reason"
TRAINING: Final = "train_pair"
REFRESH: Final = "refresh_pair"
PER_PAIR_STAGES: Final = tuple(kind for kind in CORE_STAGES if STAGES[kind].per_pair)


def pipeline_job() -> Any:
    """The job over every asset of a pair and every check; one run a pair."""
    return dg.define_asset_job(
        PIPELINE,
        selection=dg.AssetSelection.all()
        - dg.AssetSelection.assets(RAW_BARS, WALK_FORWARD_WINDOW)
        - dg.AssetSelection.groups(POLICIES_GROUP, REGISTRY_GROUP),
        description="Every stage of one pair, with all checks.",
        executor_def=dg.in_process_executor,
    )


def training_job() -> Any:
    """The job from a pair's bars to its report, without what judges it; one run a pair."""
    return dg.define_asset_job(
        TRAINING,
        selection=dg.AssetSelection.assets(*PER_PAIR_STAGES),
        description="One pair from its bars to the report on its policy; what nothing changed is reused.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_TAG: str(12 * 3600)},
    )


@cache
def refresh_job() -> Any:
    """The job that evaluates a pair's trained policy on the newest bars; one run a pair."""
    return dg.define_asset_job(
        REFRESH,
        selection=dg.AssetSelection.assets(RECENT_EVALUATION),
        description="The trained policy of one pair on the newest bars, and how far these have drifted.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_TAG: str(3600)},
    )


@cache
def months_job() -> Any:
    """The job over the months of raw data; one run a month of a pair, so that a backfill keeps many workers busy."""
    return dg.define_asset_job(
        MONTHS,
        selection=dg.AssetSelection.assets(RAW_BARS),
        description="Raw records to bars of one month of one pair.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_TAG: str(6 * 3600)},
    )


def policies_job() -> Any:
    """The job over the policies of the shipped specifications, which are of no pair."""
    return dg.define_asset_job(
        POLICIES,
        selection=dg.AssetSelection.groups(POLICIES_GROUP),
        description="The shipped specifications, trained, judged and exported.",
        executor_def=dg.in_process_executor,
    )


@cache
def export_job() -> Any:
    """The job that exports a pair's trained policy and checks the bundle; one run a pair."""
    return dg.define_asset_job(
        EXPORT,
        selection=dg.AssetSelection.assets("onnx_policy"),
        description="The trained policy of one pair as a bundle, with its checks.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_TAG: str(3600)},
    )


@cache
def champion_job() -> Any:
    """The job that compares a pair's exported bundle with the champion; one run a pair."""
    return dg.define_asset_job(
        CHAMPION,
        selection=dg.AssetSelection.groups(REGISTRY_GROUP),
        description="The exported bundle of one pair beside the champion; the alias moves to the better one.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_TAG: str(3600)},
    )


def windows_job() -> Any:
    """The job over the windows of the walk-forward; one run a window of a pair, for a backfill on many workers."""
    return dg.define_asset_job(
        WINDOWS,
        selection=dg.AssetSelection.assets(WALK_FORWARD_WINDOW),
        description="The policy trained before one window of the test span of one pair.",
        executor_def=dg.in_process_executor,
    )


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run_id: Dagster run.
        success: every step succeeded and no blocking check failed.
        materialised: stages that have an artifact of this run, in order; a stage with months once for each.
        reused: those of them that were not computed again.
        failures: one line per failed step, `stage: message`.
        failed_checks: one line per failed check, `asset/check: message`.
        warnings: one line per check that ended with a warning.
        passed_checks: number of checks that passed.
    """

    run_id: str
    success: bool
    materialised: tuple[str, ...]
    reused: tuple[str, ...]
    failures: tuple[str, ...]
    failed_checks: tuple[str, ...]
    warnings: tuple[str, ...]
    passed_checks: int


def select_stages(definitions: dg.Definitions, selection: str) -> list[dg.AssetKey]:
    """Assets of a selection: `vq_codebook`, `vq_codebook+` with all that follows, or Dagster's own syntax.

    What judges (baselines, comparisons, studies) takes long and is left out of `*` and of `+`, unless the
    selection names one of those stages or groups; a sweep is left out unless it is named itself. Windows of the
    walk-forward are a job of their own; those that are not there yet are trained by the stage that stitches them.
    Policies of specifications are of no pair and are never among them: `archetype train-policy` trains those. Nor is
    the comparison with the champion, which changes the registry.

    Raises:
        SettingsError: it is malformed or selects nothing; lists the stages.
    """
    graph = definitions.resolve_asset_graph()
    others = {POLICIES_GROUP, REGISTRY_GROUP}
    stages = {key for key in graph.get_all_asset_keys() if graph.get(key).group_name not in others}
    known = sorted(key.to_user_string() for key in stages)
    # Dagster reads a bare name in its older syntax, where `name+` stops after one step.
    explicit = re.sub(rf'(?<![\w:"])({"|".join(known)})(?!\w)', r"key:\1", selection)
    try:
        with warnings.catch_warnings():
            # `*` goes through a parameter that Dagster calls beta.
            warnings.simplefilter("ignore", dg.BetaWarning)
            keys = dg.AssetSelection.from_string(explicit).resolve(graph)
    except dg.DagsterError:
        keys = set()
    core = {RAW_BARS, *CORE_STAGES}
    judging = {name for name in known if name not in core} | JUDGING_GROUPS
    named = set(re.findall(r"\w+", selection))
    if not judging & named:
        keys = {key for key in keys if key.to_user_string() in core}
    if not {SWEEPS_GROUP, SWEEP_STUDY, BEST_SETTINGS} & named:
        keys -= {dg.AssetKey(SWEEP_STUDY), dg.AssetKey(BEST_SETTINGS)}
    keys = {key for key in keys & stages if key.path[-1] != WALK_FORWARD_WINDOW}
    if not keys:
        raise SettingsError(
            f"cannot select {selection!r}: name a stage, with + after it for all that follow or before it for all "
            f"it needs; stages are {', '.join(known)}"
        )
    return sorted(keys)


def months_to_run(definitions: dg.Definitions, settings: Settings, pair: str, selection: str) -> list[str]:
    """Months of raw bars that a selection asks for: all that the source has records of, where bars are made by month.

    Raises:
        SettingsError: see `select_stages`; or a month before the first or after the present one.
        MarketDataError: the source has no files, or one that cannot be read.
    """
    from archetype_dagster.market.months import covered_months

    chosen = [key.path[-1] for key in select_stages(definitions, selection)]
    if RAW_BARS not in chosen or not (settings.market.by_month or chosen == [RAW_BARS]):
        return []
    months = covered_months(settings.market, settings.pair(pair))
    partitions = definitions.resolve_job_def(MONTHS).partitions_def
    possible = set() if partitions is None else set(partitions.get_partition_keys())
    for month in months:
        if month_key(pair, month) not in possible:
            raise SettingsError(f"there is no partition for {month}: {RAW_BARS} are made from 2015-01 to this month")
    return months


def run_pipeline(
    definitions: dg.Definitions,
    *,
    pair: str,
    selection: str,
    instance: dg.DagsterInstance,
    run_config: Mapping[str, Any],
    tags: Mapping[str, str],
    months: Sequence[str] = (),
) -> Outcome:
    """Materialise a selection for one pair in this process, checks included.

    Args:
        definitions: the code location.
        pair: partition.
        selection: Dagster asset selection.
        instance: where the run is recorded.
        run_config: configuration of the resources.
        tags: further tags of the run.
        months: months, `YYYY-MM`, of raw bars to materialise first, one run each; see `months_to_run`.

    Returns:
        How the runs ended, as one; the first that fails is the last.

    Raises:
        SettingsError: the selection names no stage.
        KeyboardInterrupt: the run was interrupted; what was saved before counts.
    """
    keys = select_stages(definitions, selection)
    stages = [key for key in keys if key.path[-1] != RAW_BARS]
    runs: list[tuple[str, str, list[dg.AssetKey]]] = [
        (MONTHS, month_key(pair, month), [dg.AssetKey(RAW_BARS)]) for month in months
    ]
    if stages:
        runs.append((PIPELINE, pair, stages))
    if not runs:
        raise SettingsError(f"{selection!r} is made month by month, and no month was named")
    outcomes: list[Outcome] = []
    for job, partition, assets in runs:
        outcomes.append(_run(definitions.resolve_job_def(job), partition, assets, instance, run_config, tags))
        if not outcomes[-1].success:
            break
    return replace(
        outcomes[-1],
        materialised=tuple(name for outcome in outcomes for name in outcome.materialised),
        reused=tuple(name for outcome in outcomes for name in outcome.reused),
    )


def month_key(pair: str, month: str) -> dg.MultiPartitionKey:
    """Partition of raw bars of a pair and a month, `YYYY-MM`."""
    return dg.MultiPartitionKey({"pair": pair, "month": f"{month}-01"})


def _run(
    job: dg.JobDefinition,
    partition: str,
    keys: Sequence[dg.AssetKey],
    instance: dg.DagsterInstance,
    run_config: Mapping[str, Any],
    tags: Mapping[str, str],
) -> Outcome:
    quiet = {"loggers": {"console": {"config": {"log_level": logging.getLevelName(logging.CRITICAL)}}}}
    result = job.execute_in_process(
        run_config={**run_config, **quiet},
        instance=instance,
        partition_key=partition,
        asset_selection=list(keys),
        tags=dict(tags),
        raise_on_error=False,
    )
    failures = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    if any(_interrupted(event) for event in failures):
        raise KeyboardInterrupt
    evaluations = result.get_asset_check_evaluations()
    materialisations = [
        event.step_materialization_data.materialization
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION
    ]
    failed = [check for check in evaluations if not check.passed]
    return Outcome(
        run_id=result.run_id,
        success=result.success,
        materialised=tuple(str(made.asset_key.path[-1]) for made in materialisations),
        reused=tuple(str(made.asset_key.path[-1]) for made in materialisations if made.metadata["reused"].value),
        failures=tuple(_step_failures(failures, failed)),
        failed_checks=tuple(_line(check) for check in failed if check.severity is dg.AssetCheckSeverity.ERROR),
        warnings=tuple(_line(check) for check in failed if check.severity is dg.AssetCheckSeverity.WARN),
        passed_checks=sum(check.passed for check in evaluations),
    )


def _line(check: dg.AssetCheckEvaluation) -> str:
    return f"{check.asset_key.to_user_string()}/{check.check_name}: {check.description or 'failed'}"


def _interrupted(failure: dg.DagsterEvent) -> bool:
    error = failure.step_failure_data.error
    return error is not None and error.cls_name == dg.DagsterExecutionInterruptedError.__name__


def _step_failures(failures: Sequence[dg.DagsterEvent], failed: Sequence[dg.AssetCheckEvaluation]) -> list[str]:
    lines = []
    blocked = {f"{check.asset_key.path[-1]}_{check.check_name}" for check in failed}
    for event in failures:
        if event.step_key in blocked:
            continue
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            lines.append(f"{event.step_key}: {data.user_failure_data.description}")
        elif data.error is not None:
            lines.append(f"{event.step_key}: internal error\n{data.error.to_string()}")
    return lines
