"""A policy that was trained and not exported is exported, and then compared with the champion."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from archetype_dagster.bundle_sensors import new_bundle, new_checkpoint
from archetype_dagster.jobs import EXPORT, Outcome

TRAINED, EXPORTED = "refinement_checkpoint", "onnx_policy"
Define = Callable[..., dg.Definitions]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def look(define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance) -> Callable[..., Any]:
    """Requests and the next cursor of one look of a sensor."""
    repository = define_tiny(tmp_path / "result").get_repository_def()

    def tick(
        cursor: str | None = None, sensor: dg.SensorDefinition = new_checkpoint
    ) -> tuple[list[dg.RunRequest], Any]:
        context = dg.build_sensor_context(instance, cursor=cursor, repository_def=repository)
        data = sensor.evaluate_tick(context)
        return list(data.run_requests or []), data.cursor or cursor

    return tick


def run_that_makes(instance: dg.DagsterInstance, pair: str, *kinds: str, meanwhile: Callable[[], Any] = tuple) -> Any:
    """What `meanwhile` saw in a run that tells of these assets of a pair, after the last of them."""
    seen = []

    @dg.op
    def make(context) -> None:
        for kind in kinds:
            context.log_event(dg.AssetMaterialization(kind, partition=pair))
        seen.append(meanwhile())

    @dg.job
    def making() -> None:
        make()

    assert making.execute_in_process(instance=instance).success
    return seen[0]


def test_a_trained_policy_without_a_bundle_is_exported_once(instance, look):
    assert look() == ([], None)
    run_that_makes(instance, "ETH", EXPORTED, TRAINED)
    run_that_makes(instance, "BTC", TRAINED, EXPORTED)
    instance.report_runless_asset_event(dg.AssetMaterialization(TRAINED, partition="nobody's"))
    (request,), cursor = look()
    assert request.partition_key == "ETH", "BTC's run exported its policy itself"
    assert request.tags["archetype/reason"].startswith("trained by run ")
    assert look(cursor) == ([], cursor)
    run_that_makes(instance, "ETH", TRAINED)
    (again,), _ = look(cursor)
    assert again.run_key != request.run_key


def test_a_run_that_still_goes_on_is_waited_for_with_all_that_came_later(instance, look):
    def meanwhile():
        run_that_makes(instance, "DOT", TRAINED)
        return look()

    assert run_that_makes(instance, "ETH", TRAINED, meanwhile=meanwhile) == ([], None)
    requests, _ = look()
    assert [request.partition_key for request in requests] == ["DOT", "ETH"]


@pytest.mark.slow
def test_the_job_exports_what_the_sensor_asks_for_and_the_other_sensor_sees_the_bundle(
    finished: tuple[Path, Outcome], run_tiny, define_tiny: Define, tmp_path: Path, instance, look
):
    root = tmp_path / "result"
    shutil.copytree(finished[0], root)
    shutil.rmtree(root / "ETH" / "onnx")
    run_tiny(root, selection="refinement_checkpoint", instance=instance)
    (request,), cursor = look()
    job = define_tiny(root).resolve_job_def(EXPORT)
    assert job.execute_in_process(partition_key=request.partition_key, instance=instance).success
    assert (root / "ETH" / "onnx" / "policy.json").is_file()
    assert look(cursor) == ([], cursor)
    (request,), _ = look(sensor=new_bundle)
    assert request.partition_key == "ETH"
