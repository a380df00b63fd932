"""Schedules, sensors and declarative automation: what they ask for, evaluated as the daemon evaluates them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from archetype_dagster.artifacts import publish_artifact
from archetype_dagster.jobs import MONTHS, REFRESH, TRAINING
from archetype_dagster.pipeline.manifests import stage_manifest
from archetype_dagster.pipeline.stages import STAGES
from archetype_dagster.schedules import alert_on_failure, new_raw_files
from archetype_dagster.settings import PAIRS, Settings, load_settings
from resources.alerts import WEBHOOK_VARIABLE, AlertsResource
from resources.settings import SettingsResource
from resources.storage import ArtifactStore

MONDAY = datetime(2024, 9, 16, 4, 0, tzinfo=UTC)
Define = Callable[..., dg.Definitions]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def tick(definitions: dg.Definitions, name: str, moment: datetime, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    repository = definitions.get_repository_def()
    schedule, resources = repository.get_schedule_def(name), repository.get_top_level_resources()
    wanted = {key: resources[key] for key in schedule.required_resource_keys}
    with dg.build_schedule_context(
        instance, scheduled_execution_time=moment, repository_def=repository, resources=wanted
    ) as context:
        return list(schedule.evaluate_tick(context).run_requests or [])


def overrides(request: dg.RunRequest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = request.run_config.get("resources", {}).get("settings", {}).get("config", {})
    return found.get("overrides", {})


def test_each_pair_is_retrained_in_its_own_hour(define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance):
    repository = define_tiny(tmp_path / "result").get_repository_def()
    crons = {schedule.name: schedule.cron_schedule for schedule in repository.schedule_defs}
    retraining = {name: cron for name, cron in crons.items() if name.startswith("retrain_")}
    assert retraining.keys() == {f"retrain_{pair.lower()}" for pair in PAIRS}
    assert len(set(retraining.values())) == len(PAIRS)
    (request,) = tick(define_tiny(tmp_path / "result"), "retrain_eth", MONDAY, instance)
    assert request.partition_key == "ETH"
    assert request.run_key == "ETH 2024-W38"
    assert overrides(request) == {}
    assert repository.get_schedule_def("retrain_eth").job_name == TRAINING


def test_splits_move_on_only_where_the_settings_say_so(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance
):
    rolling = define_tiny(tmp_path / "result", {"operations.roll_splits": True})
    (request,) = tick(rolling, "retrain_eth", datetime(2023, 2, 25, tzinfo=UTC), instance)
    moved = load_settings("smoke", dict(overrides(request))).splits
    assert moved.test_end == datetime(2023, 2, 24, tzinfo=UTC)
    assert moved.train_start == datetime(2023, 1, 15, tzinfo=UTC)


def publish_report(root: Path, pair: str, settings: Settings) -> None:
    """A report of a pair with nothing in it but what it was made with."""
    stage = STAGES["evaluation_report"]
    manifest = stage_manifest(stage, pair, settings, [], {})
    with publish_artifact(ArtifactStore(root=str(root)).directory(stage.kind, pair), manifest):
        pass


def test_only_pairs_with_a_policy_are_refreshed_on_the_splits_they_were_trained_on(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance, tiny: Mapping[str, Any]
):
    root = tmp_path / "result"
    publish_report(root, "ETH", load_settings("smoke", tiny))
    (request,) = tick(define_tiny(root), "refresh_daily", MONDAY, instance)
    assert (request.partition_key, overrides(request)) == ("ETH", {})
    other = define_tiny(root, {"splits.test_end": "2023-02-09T00:00:00Z"})
    (request,) = tick(other, "refresh_daily", MONDAY, instance)
    assert overrides(request) == {"splits.test_end": "2023-02-10T00:00:00Z"}
    assert tick(define_tiny(tmp_path / "empty"), "refresh_daily", MONDAY, instance) == []


class Archive:
    """A folder of daily candle files, a sensor over it, and its cursor."""

    def __init__(
        self, folder: Path, define: Define, root: Path, instance: dg.DagsterInstance, *, by_month: bool
    ) -> None:
        self.folder, self.instance, self.cursor = folder, instance, None
        folder.mkdir(exist_ok=True)
        changes = {
            "market.source": "binance-klines",
            "market.path": str(folder),
            "market.by_month": by_month,
            "operations.settle_seconds": 30.0,
        }
        self.repository = define(root, changes).get_repository_def()
        self.resources = {"settings": SettingsResource(overrides=changes), "store": ArtifactStore(root=str(root))}

    def add(self, pair: str, day: str, *, age: float = 100.0, content: str = "x\n") -> Path:
        file = self.folder / f"{pair}USDT-5m-{day}.csv"
        file.write_text(content)
        moment = time.time() - age
        os.utime(file, (moment, moment))
        return file

    def look(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(
            self.instance, cursor=self.cursor, repository_def=self.repository, resources=self.resources
        )
        found = new_raw_files.evaluate_tick(context)
        self.cursor = found.cursor
        return list(found.run_requests or [])


@pytest.fixture
def archive(tmp_path: Path, define_tiny: Define, instance: dg.DagsterInstance) -> Archive:
    return Archive(tmp_path / "archive", define_tiny, tmp_path / "result", instance, by_month=True)


def test_new_files_are_seen_once_whole_and_ask_for_their_months(archive: Archive):
    archive.add("ETH", "2023-01-30")
    archive.add("ETH", "2023-01-31")
    archive.add("BTC", "2023-02-01")
    assert archive.look() == []
    requests = archive.look()
    assert {(request.job_name, str(request.partition_key)) for request in requests} == {
        (MONTHS, "2023-01-01|ETH"),
        (MONTHS, "2023-02-01|BTC"),
    }
    assert archive.look() == []


def test_a_half_written_file_asks_for_nothing(archive: Archive):
    young = archive.add("ETH", "2023-01-30", age=0.0)
    assert archive.look() == archive.look() == []
    archive.add("ETH", "2023-01-30", age=60.0, content="x\ny\n")
    assert archive.look() == []
    (request,) = archive.look()
    assert str(request.partition_key) == "2023-01-01|ETH"
    # An archive without its end cannot even be listed.
    young.unlink()
    archive.add("ETH", "2023-02-30", age=60.0).rename(archive.folder / "ETHUSDT-5m-2023-02-03.zip")
    (archive.folder / "ETHUSDT-5m-2023-02-03.zip").write_bytes(b"PK\x03\x04 half")
    assert archive.look() == archive.look() == []


def test_a_changed_file_asks_again_under_another_run_key(archive: Archive):
    archive.add("ETH", "2023-01-30")
    archive.look()
    (first,) = archive.look()
    archive.add("ETH", "2023-01-30", age=90.0, content="x\ny\n")
    archive.look()
    (second,) = archive.look()
    assert first.partition_key == second.partition_key
    assert first.run_key != second.run_key


def test_a_source_read_in_one_step_refreshes_pairs_with_a_policy(
    tmp_path: Path, define_tiny: Define, instance: dg.DagsterInstance
):
    archive = Archive(tmp_path / "archive", define_tiny, tmp_path / "result", instance, by_month=False)
    publish_report(tmp_path / "result", "ETH", load_settings("smoke"))
    archive.add("ETH", "2023-01-30")
    archive.add("BTC", "2023-01-30")
    archive.look()
    (request,) = archive.look()
    assert (request.job_name, request.partition_key) == (REFRESH, "ETH")


def test_what_depends_on_a_changed_parent_is_asked_for_once(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance
):
    definitions = define_tiny(tmp_path / "result")
    first = dg.evaluate_automation_conditions(definitions, instance)
    assert first.total_requested == 0
    for asset in ("evaluation_report", "refinement_checkpoint"):
        instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition="ETH"))
    asked = dg.evaluate_automation_conditions(definitions, instance, cursor=first.cursor)
    assert asked.get_num_requested(dg.AssetKey("leaderboard")) == 1
    assert asked.get_requested_partitions(dg.AssetKey("recent_evaluation")) == {"ETH"}
    again = dg.evaluate_automation_conditions(definitions, instance, cursor=asked.cursor)
    assert again.total_requested == 0


def test_a_failed_run_is_told_and_one_that_is_tried_again_is_not(
    define_tiny: Define,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(WEBHOOK_VARIABLE, raising=False)
    definitions = define_tiny(tmp_path / "result", {"planner.horizon_bars": -1})
    job = definitions.resolve_job_def(TRAINING)
    for tags in ({}, {"dagster/will_retry": "true"}):
        failed = job.execute_in_process(
            instance=instance,
            partition_key="ETH",
            raise_on_error=False,
            tags=tags,
            asset_selection=[dg.AssetKey("market_bars")],
        )
        assert not failed.success
        run = instance.get_run_by_id(failed.run_id)
        context = dg.build_run_status_sensor_context(
            "alert_on_failure",
            dagster_instance=instance,
            dagster_run=run,
            dagster_event=failed.get_run_failure_event(),
            resources={"alerts": AlertsResource()},
        ).for_run_failure()
        alert_on_failure(context)
    (alert,) = [record.getMessage() for record in caplog.records if record.name == "resources.alerts"]
    title, reason, run = alert.splitlines()
    assert title == "train_pair failed for ETH"
    assert reason.startswith("market_bars: ")
    assert "planner.horizon_bars" in reason
    assert run.startswith("run ")
