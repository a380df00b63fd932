"""The sensor that notices a new exported bundle and has it compared with the champion."""

from typing import Any, Final, cast

import dagster as dg

from archetype_dagster.jobs import champion_job
from assets.execution import RESOURCE_KEYS

_AT_ONCE: Final = 100


@dg.sensor(
    job=champion_job(),
    minimum_interval_seconds=60,
    description="A new exported bundle: it is compared with the champion, and the alias moves if it is better.",
)
def new_bundle(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """One run for each pair with a new bundle, under the settings of the run that exported it."""
    cursor = int(context.cursor) if context.cursor else None
    asset = dg.AssetKey("onnx_policy")
    wanted = dg.AssetRecordsFilter(asset, after_storage_id=cursor)
    found = context.instance.fetch_materializations(wanted, limit=_AT_ONCE, ascending=True).records
    if not found:
        return dg.SkipReason("no bundle was exported since the last look")
    newest = {record.partition_key: record for record in found if record.partition_key is not None}
    requests = []
    for pair, record in sorted(newest.items()):
        if cursor is not None:
            seen = dg.AssetRecordsFilter(asset, asset_partitions=[pair], before_storage_id=cursor + 1)
            before = context.instance.fetch_materializations(seen, limit=1).records
            if before and _content(before[0]) == _content(record):
                continue
        exported = context.instance.get_run_by_id(record.run_id)
        resources = {} if exported is None else cast(dict[str, Any], exported.run_config.get("resources", {}))
        requests.append(
            dg.RunRequest(
                # Not its content, which may come back after another bundle and is then compared again.
                run_key=f"{pair} {record.storage_id}",
                partition_key=pair,
                run_config={"resources": {key: value for key, value in resources.items() if key in RESOURCE_KEYS}},
                tags={"archetype/reason": f"exported by run {record.run_id}"},
            )
        )
    return dg.SensorResult(run_requests=requests, cursor=str(found[-1].storage_id))


def _content(record: dg.EventLogRecord) -> object:
    """What says whether two bundles are the same."""
    made = record.asset_materialization
    return record.storage_id if made is None else made.metadata["content_hash"].value
