"""The whole definition graph against a readable file: a renamed asset or a lost check is a change of contract.

After a change that is meant: `python tests/pipeline/test_snapshot.py`, and read the difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from archetype_dagster.definitions import defs
from archetype_dagster.jobs import PIPELINE
from archetype_dagster.pipeline.stages import STAGES

SNAPSHOT = Path(__file__).with_name("definitions.yaml")
RENEW = f"{sys.executable} {Path(__file__).name}"
KINDS = {"html", "onnx", "optuna", "parquet", "polars", "python", "pytorch", "torch"}


def partitions(definition: dg.PartitionsDefinition[str] | None) -> Any:
    """How something is partitioned, without what depends on the day."""
    if definition is None:
        return None
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {dimension.name: partitions(dimension.partitions_def) for dimension in definition.partitions_defs}
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return f"{definition.fmt} by {definition.cron_schedule} from {definition.start.date()}"
    return ", ".join(definition.get_partition_keys())


def graph() -> dict[str, Any]:
    """Names, groups, partitions, kinds, parents and checks of the assets; jobs, schedules, sensors, resources."""
    assets, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    checks = {key: assets.get_check_spec(key) for key in assets.asset_check_keys}
    return {
        "assets": {
            key.to_user_string(): {
                "group": node.group_name,
                "kinds": ", ".join(sorted(node.kinds)),
                "owners": ", ".join(node.owners),
                "parents": sorted(parent.to_user_string() for parent in node.parent_keys),
                "partitions": partitions(node.partitions_def),
                "checks": {
                    check.name: "blocks" if spec.blocking else "warns"
                    for check, spec in sorted(checks.items(), key=lambda item: item[0].name)
                    if check.asset_key == key
                },
                "automation": None if node.automation_condition is None else node.automation_condition.get_label(),
                "freshness": node.freshness_policy is not None,
            }
            for key in sorted(assets.get_all_asset_keys())
            for node in [assets.get(key)]
        },
        "jobs": {
            job.name: {
                "assets": sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys),
                "tags": dict(job.run_tags or {}),
            }
            for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
            if not job.name.startswith("__")
        },
        "schedules": {
            schedule.name: {
                "job": schedule.job_name,
                "cron": schedule.cron_schedule,
                "zone": schedule.execution_timezone,
            }
            for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name)
        },
        "sensors": {
            sensor.name: {"type": sensor.sensor_type.value, "starts": sensor.default_status.value}
            for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name)
        },
        "resources": sorted(repository.get_top_level_resources()),
    }


def as_text(value: dict[str, Any]) -> str:
    return yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, width=120)


def test_the_graph_is_the_one_of_the_snapshot():
    expected = yaml.safe_load(SNAPSHOT.read_text(encoding="utf-8"))
    assert yaml.safe_load(as_text(graph())) == expected, f"if this is meant, renew the snapshot: {RENEW}"


def test_the_definitions_load_and_every_check_has_a_verdict_per_pair():
    dg.Definitions.validate_loadable(defs)
    assets = defs.resolve_asset_graph()
    for key in assets.asset_check_keys:
        assert assets.get_check_spec(key).partitions_def is not None


def test_every_asset_says_what_it_is_and_of_what_kind():
    assets = defs.resolve_asset_graph()
    for key in assets.get_all_asset_keys():
        node = assets.get(key)
        assert node.description, key
        assert node.description.rstrip().endswith("."), key
        assert node.kinds, key
        assert node.kinds <= KINDS, key
        assert node.owners, key
    for check in assets.asset_check_keys:
        assert assets.get_check_spec(check).description, check


def test_every_job_schedule_and_sensor_is_described():
    repository = defs.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    sensors = [sensor for sensor in repository.sensor_defs if not sensor.name.startswith("default_")]
    for named in (*jobs, *repository.schedule_defs, *sensors):
        assert named.description, named.name
    assert PIPELINE in {job.name for job in jobs}


def test_loading_the_graph_loads_nothing_that_computes():
    heavy = "{'torch', 'numba', 'scipy', 'sklearn', 'matplotlib', 'mlflow', 'gymnasium', 'optuna', 'onnxruntime'}"
    code = f"import sys, archetype_dagster.definitions; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_table_of_stages_and_the_graph_name_the_same_parents():
    assets = defs.resolve_asset_graph()
    found = {kind: {key.to_user_string() for key in assets.get(dg.AssetKey(kind)).parent_keys} for kind in STAGES}
    assert found == {kind: set(stage.parents) for kind, stage in STAGES.items()}


if __name__ == "__main__":
    SNAPSHOT.write_text(as_text(graph()), encoding="utf-8")
