from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
from dagster._core.instance.config import PoolGranularity

from resources.instance import OWNER_TAG, fail_dead_runs, instance_home, open_instance, run_owner
from resources.launcher import LocalRunLauncher

REPOSITORY = str(Path(__file__).parents[3])

# Starts a run whose asset says that it holds the pool, then waits until it is killed.
VICTIM = """
import signal
import dagster as dg
from pathlib import Path
from resources.instance import open_instance, run_owner

@dg.asset(pool="gpu")
def stuck():
    print("holding", flush=True)
    signal.pause()

home = Path(".dagster")
with open_instance(home) as instance, run_owner(home) as tags:
    dg.materialize([stuck], instance=instance, tags=tags)
"""


def start_victim(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert any(line == "holding\n" for line in process.stdout)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_home_is_prepared_once_and_left_as_edited(tmp_path: Path):
    with open_instance(tmp_path / "home") as instance:
        assert instance.telemetry_enabled is False
        assert instance.nux_enabled is False
        pools = instance.get_concurrency_config().pool_config
        assert pools.default_pool_limit == 1
        # By steps, a run that waits in this process would keep a core busy.
        assert pools.pool_granularity is PoolGranularity.RUN
        assert instance.event_log_storage.get_concurrency_info("gpu").slot_count == 1
        assert isinstance(instance.run_launcher, LocalRunLauncher)
    edited = tmp_path / "home" / "dagster.yaml"
    edited.write_text("telemetry: {enabled: false}\n")
    with open_instance(tmp_path / "home"):
        assert edited.read_text() == "telemetry: {enabled: false}\n"


def test_the_home_is_the_environments_or_the_working_directorys(monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert instance_home() == tmp_path / ".dagster"
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "elsewhere"))
    assert instance_home() == tmp_path / "elsewhere"


def test_a_killed_run_is_failed_and_frees_its_pool(tmp_path: Path):
    home = tmp_path / ".dagster"
    home.mkdir()
    # A home from before runs, and not steps, waited for a pool.
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nconcurrency: {pools: {default_limit: 1}}\n")
    victim = start_victim(tmp_path)
    with open_instance(home) as instance:
        (alive,) = instance.get_runs()
        assert alive.status is dg.DagsterRunStatus.STARTED
        assert instance.event_log_storage.get_concurrency_info("gpu").active_run_ids == {alive.run_id}
        kill(victim)
        assert fail_dead_runs(instance, home) == [alive.run_id]
        (dead,) = instance.get_runs()
        assert dead.status is dg.DagsterRunStatus.FAILURE
        assert instance.event_log_storage.get_concurrency_info("gpu").active_run_ids == set()
        assert fail_dead_runs(instance, home) == []


def test_runs_of_other_hosts_and_of_the_ui_are_left_alone(tmp_path: Path):
    home = tmp_path / "home"
    with open_instance(home) as instance, run_owner(home) as tags:
        assert OWNER_TAG in tags
        for extra in ({}, {OWNER_TAG: "another-host-1"}, tags):
            run_id = instance.create_run_for_job(_empty_job(), tags=extra).run_id
            assert run_id
        assert fail_dead_runs(instance, home) == []


def _empty_job() -> dg.JobDefinition:
    @dg.op
    def nothing():
        pass

    @dg.job
    def empty():
        nothing()

    return empty


def test_a_run_in_this_process_does_not_wait_for_a_pool_that_another_holds(tmp_path: Path):
    @dg.asset(pool="gpu")
    def trained():
        pass

    with open_instance(tmp_path / "home") as instance:
        instance.event_log_storage.claim_concurrency_slot("gpu", "another-run", "its-step")
        assert dg.materialize([trained], instance=instance).success
