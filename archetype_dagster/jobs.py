"""The pipeline job, and running it in this process with an outcome that a person can read."""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from archetype_dagster.errors import SettingsError
from archetype_dagster.pipeline.stages import CORE_STAGES, JUDGING_GROUPS

PIPELINE: Final = "pipeline"


def pipeline_job() -> Any:
    """The job over every asset and check; one run a pair."""
    return dg.define_asset_job(
        PIPELINE,
        selection=dg.AssetSelection.all(),
        description="Every stage of one pair, with all checks.",
        executor_def=dg.in_process_executor,
    )


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run_id: Dagster run.
        success: every step succeeded and no blocking check failed.
        materialised: stages that have an artifact of this run, in order.
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
    selection names one of those stages or groups.

    Raises:
        SettingsError: it is malformed or selects nothing; lists the stages.
    """
    graph = definitions.resolve_asset_graph()
    known = sorted(key.to_user_string() for key in graph.get_all_asset_keys())
    # Dagster reads a bare name in its older syntax, where `name+` stops after one step.
    explicit = re.sub(rf'(?<![\w:"])({"|".join(known)})(?!\w)', r"key:\1", selection)
    try:
        with warnings.catch_warnings():
            # `*` goes through a parameter that Dagster calls beta.
            warnings.simplefilter("ignore", dg.BetaWarning)
            keys = dg.AssetSelection.from_string(explicit).resolve(graph)
    except dg.DagsterError:
        keys = set()
    judging = {name for name in known if name not in CORE_STAGES} | JUDGING_GROUPS
    if not judging & set(re.findall(r"\w+", selection)):
        keys = {key for key in keys if key.to_user_string() in CORE_STAGES}
    if not keys:
        raise SettingsError(
            f"cannot select {selection!r}: name a stage, with + after it for all that follow or before it for all "
            f"it needs; stages are {', '.join(known)}"
        )
    return sorted(keys)


def run_pipeline(
    definitions: dg.Definitions,
    *,
    pair: str,
    selection: str,
    instance: dg.DagsterInstance,
    run_config: Mapping[str, Any],
    tags: Mapping[str, str],
) -> Outcome:
    """Materialise a selection for one pair in this process, checks included.

    Args:
        definitions: the code location.
        pair: partition.
        selection: Dagster asset selection.
        instance: where the run is recorded.
        run_config: configuration of the resources.
        tags: further tags of the run.

    Raises:
        SettingsError: the selection names no stage.
        KeyboardInterrupt: the run was interrupted; what was saved before counts.
    """
    job = definitions.resolve_job_def(PIPELINE)
    quiet = {"loggers": {"console": {"config": {"log_level": logging.getLevelName(logging.CRITICAL)}}}}
    result = job.execute_in_process(
        run_config={**run_config, **quiet},
        instance=instance,
        partition_key=pair,
        asset_selection=select_stages(definitions, selection),
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
