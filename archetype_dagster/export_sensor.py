"""The sensor that has a trained policy exported where the run that trained it left no bundle behind."""

from itertools import takewhile
from typing import Final

import dagster as dg

from archetype_dagster.champion_sensor import under_its_settings
from archetype_dagster.jobs import export_job
from archetype_dagster.settings import PAIRS

_TRAINED: Final = dg.AssetKey("refinement_checkpoint")
_EXPORTED: Final = dg.AssetKey("onnx_policy")
_AT_ONCE: Final = 100


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
            under_its_settings(instance, pair, record, "trained")
            for pair, record in sorted(newest.items())
            if pair is not None and not _is_exported(instance, pair, record)
        ],
        cursor=str(over[-1].storage_id),
    )


def _is_over(instance: dg.DagsterInstance, record: dg.EventLogRecord) -> bool:
    run = instance.get_run_by_id(record.run_id)
    return run is None or run.is_finished


def _is_exported(instance: dg.DagsterInstance, pair: str, record: dg.EventLogRecord) -> bool:
    later = dg.AssetRecordsFilter(_EXPORTED, asset_partitions=[pair], after_storage_id=record.storage_id)
    return bool(instance.fetch_materializations(later, limit=1).records)
