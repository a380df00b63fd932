"""The sensors that lead from a trained policy to the champion: it is exported, and its bundle compared."""

import time
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import dagster as dg

from archetype_dagster.jobs import CHAMPION, REASON_TAG, champion_job, export_job
from archetype_dagster.settings import PAIRS
from assets.champion import AWAY_TAG
from assets.execution import RESOURCE_KEYS

TRY_TAG: Final = "archetype/try"
_TRAINED: Final = dg.AssetKey("refinement_checkpoint")
_EXPORTED: Final = dg.AssetKey("onnx_policy")
_AT_ONCE: Final = 100
_MORE_TRIES: Final = 5
_FIRST_WAIT_SECONDS: Final = 600.0


@dg.sensor(
    job=export_job(),
    minimum_interval_seconds=60,
    description="A trained policy without a bundle: it is exported, and new_bundle has it compared with the champion.",
)
def new_checkpoint(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """One run for each pair whose newest refiner no bundle follows, under the settings of the run that trained it.

    A run that still goes on may export the bundle itself: it is waited for, and with it all that came later.
    """
    instance, cursor = context.instance, int(context.cursor) if context.cursor else None
    wanted = dg.AssetRecordsFilter(_TRAINED, after_storage_id=cursor)
    found = instance.fetch_materializations(wanted, limit=_AT_ONCE, ascending=True).records
    over = list(takewhile(lambda record: _is_over(instance, record), found))
    if not over:
        return dg.SkipReason("no policy was trained to the end since the last look")
    newest = {record.partition_key: record for record in over if record.partition_key in PAIRS}
    return dg.SensorResult(
        run_requests=[
            _under_its_settings(instance, pair, record, "trained")
            for pair, record in sorted(newest.items())
            if pair is not None and not _is_exported(instance, pair, record)
        ],
        cursor=str(over[-1].storage_id),
    )


@dg.sensor(
    job=champion_job(),
    minimum_interval_seconds=60,
    description="A new exported bundle: it is compared with the champion, and the alias moves if it is better.",
)
def new_bundle(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """One run for each pair with a new bundle, under the settings of the run that exported it.

    A comparison that failed because the registry did not answer is asked for again 10, 20, 40, 80 and 160 minutes
    after it failed, unless the pair's bundle was compared anew meanwhile.
    """
    cursor = int(context.cursor) if context.cursor else None
    wanted = dg.AssetRecordsFilter(_EXPORTED, after_storage_id=cursor)
    found = context.instance.fetch_materializations(wanted, limit=_AT_ONCE, ascending=True).records
    newest = {record.partition_key: record for record in found if record.partition_key in PAIRS}
    requests = []
    for pair in sorted(PAIRS):
        record = newest.get(pair)
        if record is not None and not _is_seen(context.instance, pair, record, cursor):
            requests.append(_under_its_settings(context.instance, pair, record, "exported"))
        elif (again := _again(context.instance, pair)) is not None:
            requests.append(again)
    if not found and not requests:
        return dg.SkipReason("no bundle was exported since the last look")
    return dg.SensorResult(run_requests=requests, cursor=str(found[-1].storage_id) if found else context.cursor)


def _is_over(instance: dg.DagsterInstance, record: dg.EventLogRecord) -> bool:
    run = instance.get_run_by_id(record.run_id)
    return run is None or run.is_finished


def _is_exported(instance: dg.DagsterInstance, pair: str, record: dg.EventLogRecord) -> bool:
    later = dg.AssetRecordsFilter(_EXPORTED, asset_partitions=[pair], after_storage_id=record.storage_id)
    return bool(instance.fetch_materializations(later, limit=1).records)


def _is_seen(instance: dg.DagsterInstance, pair: str, record: dg.EventLogRecord, cursor: int | None) -> bool:
    """Whether the pair's bundle of the last look is the same."""
    if cursor is None:
        return False
    seen = dg.AssetRecordsFilter(_EXPORTED, asset_partitions=[pair], before_storage_id=cursor + 1)
    before = instance.fetch_materializations(seen, limit=1).records
    return bool(before) and _content(before[0]) == _content(record)


def _under_its_settings(instance: dg.DagsterInstance, pair: str, record: dg.EventLogRecord, verb: str) -> dg.RunRequest:
    """A run for a pair's materialisation, under the settings of the run that made it; `verb` tells what that did."""
    maker = instance.get_run_by_id(record.run_id)
    return dg.RunRequest(
        # Not its content, which may come back after another one and is then looked at again.
        run_key=f"{pair} {record.storage_id}",
        partition_key=pair,
        run_config={} if maker is None else _resources(maker.run_config),
        tags={REASON_TAG: "reported by hand" if maker is None else f"{verb} by run {record.run_id}"},
    )


def _again(instance: dg.DagsterInstance, pair: str) -> dg.RunRequest | None:
    """The pair's newest comparison once more, where it failed for want of the registry and has waited its time."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=CHAMPION, tags={"dagster/partition": pair}), limit=1)
    if not newest:
        return None
    run, ended = newest[0].dagster_run, newest[0].end_time
    tries = int(run.tags.get(TRY_TAG, "0"))
    if run.status is not dg.DagsterRunStatus.FAILURE or run.tags.get(AWAY_TAG) != run.run_id or tries >= _MORE_TRIES:
        return None
    if ended is None or time.time() < ended + _FIRST_WAIT_SECONDS * 2**tries:
        return None
    return dg.RunRequest(
        run_key=f"{pair} after {run.run_id}",
        partition_key=pair,
        run_config=_resources(run.run_config),
        tags={REASON_TAG: f"the registry did not answer run {run.run_id}", TRY_TAG: str(tries + 1)},
    )


def _resources(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that says under which settings it ran."""
    resources = run_config.get("resources", {})
    return {"resources": {key: value for key, value in resources.items() if key in RESOURCE_KEYS}}


def _content(record: dg.EventLogRecord) -> object:
    """What says whether two bundles are the same; each that does not tell its content is one of its own."""
    made = record.asset_materialization
    told = None if made is None else made.metadata.get("content_hash")
    return record.storage_id if told is None else told.value
