"""A backfill over Celery workers, one of which is killed: every partition ends complete, to the byte as in process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from archetype_dagster.jobs import PER_PAIR_STAGES
from archetype_dagster.settings import PAIRS

celery = pytest.importorskip("celery", reason="the distributed extra is not installed")

RESUMED = "Launching a new run worker to resume run"
FEW_STAGES = ("market_bars", "feature_table", "dp_trajectories")
CODE = """\
import time

import dagster as dg
from archetype_dagster.definitions import build_defs
from resources.compute import ComputeResource
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource


@dg.op
def wait():
    time.sleep(3600)


@dg.job(executor_def=dg.in_process_executor)
def waiting():
    wait()


few = dg.define_asset_job("backfilled", {stages!r}, executor_def=dg.in_process_executor)
defs = dg.Definitions.merge(
    build_defs(
        {{
            "settings": SettingsResource(overrides={overrides!r}),
            "store": ArtifactStore(root={root!r}),
            "compute": ComputeResource(device="cpu", threads=1),
            "tracking": TrackingResource(enabled=False),
        }}
    ),
    dg.Definitions(jobs=[few, waiting]),
)
"""


def files(root: Path) -> dict[str, bytes]:
    """Everything published below a result folder, and whatever else was left there but locks."""
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {name.as_posix(): path.read_bytes() for name, path in found.items() if name.parts[0] != ".locks"}


def files_of_this_process(root: Path, code: str) -> dict[str, bytes]:
    """What the same job publishes when nothing disturbs it, one pair after the other in this process."""
    location: dict[str, Any] = {}
    exec(compile(code, "location.py", "exec"), location)
    job = location["defs"].resolve_job_def("backfilled")
    with dg.DagsterInstance.ephemeral() as instance:
        for pair in PAIRS:
            assert job.execute_in_process(partition_key=pair, instance=instance).success
    return files(root)


def backfill_with_a_killed_worker(site: Any, seconds: float) -> list[dg.DagsterRun]:
    """Backfill all pairs on two workers; the first worker that has published something of its run is killed."""
    results = celery.Celery(backend=site.environment["CELERY_RESULT_BACKEND"])
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(os, "environ", site.environment)
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(site.home)))
        instance.get_runs_count()
        workers = {name: stack.enter_context(site.worker(name)) for name in ("first", "second")}
        stack.enter_context(site.code_server())
        stack.enter_context(site.daemon())
        site.backfill("backfilled", PAIRS)
        killed: str | None = None
        deadline = time.monotonic() + seconds
        while True:
            runs = list(instance.get_runs())
            failed = [run for run in runs if run.status is dg.DagsterRunStatus.FAILURE]
            if failed:
                pytest.fail("\n".join(entry.message for entry in instance.all_logs(failed[0].run_id)))
            if len(runs) == len(PAIRS) and all(run.is_finished for run in runs):
                break
            if time.monotonic() > deadline:
                pytest.fail(f"the backfill did not end within {seconds} s")
            for run in runs if killed is None else ():
                made = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
                task = results.AsyncResult(run.tags["dagster-celery/task_id"]) if made else None
                if task is not None and task.state == "STARTED":
                    worker: subprocess.Popen[bytes] = workers[task.info["hostname"].split("@")[0]]
                    os.killpg(worker.pid, signal.SIGKILL)
                    killed = run.run_id
                    break
            time.sleep(0.1)
        assert killed is not None
        assert any(RESUMED in entry.message for entry in instance.all_logs(killed))
        stop_a_run(site, instance)
        return runs


def stop_a_run(site: Any, instance: dg.DagsterInstance) -> None:
    """A run that was cancelled ends, and run monitoring, which looks every second, does not bring it back."""
    site.launch("waiting")

    def run() -> dg.DagsterRun:
        (only,) = instance.get_runs(dg.RunsFilter(job_name="waiting"))
        return only

    def steps_started() -> int:
        return len(instance.all_logs(run().run_id, of_type=dg.DagsterEventType.STEP_START))

    site.wait_until(lambda: steps_started() == 1, "the start of a run that waits")
    assert instance.run_launcher.terminate(run().run_id)
    site.wait_until(lambda: run().is_finished, "the end of a run that was stopped")
    time.sleep(3)
    assert run().status is dg.DagsterRunStatus.CANCELED
    assert steps_started() == 1
    assert not instance.run_launcher.terminate(run().run_id)


def check_backfill(
    make_site: Callable[[str], Any],
    folder: Path,
    stages: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    seconds: float,
) -> None:
    def code(root: Path) -> str:
        return CODE.format(overrides=dict(overrides), root=str(root), stages=list(stages))

    root, alone = folder / "distributed", folder / "alone"
    site = make_site(code(root))
    runs = backfill_with_a_killed_worker(site, seconds)
    assert all(run.status is dg.DagsterRunStatus.SUCCESS for run in runs)
    assert sorted(run.tags["dagster/partition"] for run in runs) == sorted(PAIRS)
    found, expected = files(root), files_of_this_process(alone, code(alone))
    assert sorted(found) == sorted(expected)
    assert [name for name, content in expected.items() if found[name] != content] == []
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"RUN_START" in written
    assert b"-test-password" not in written


@pytest.mark.endurance
@pytest.mark.timeout(900)
def test_a_killed_worker_costs_a_backfill_nothing_but_time(
    tmp_path: Path, make_site: Callable[[str], Any], tiny: Mapping[str, Any]
) -> None:
    check_backfill(make_site, tmp_path, FEW_STAGES, tiny, seconds=600)


@pytest.mark.endurance
@pytest.mark.timeout(7200)
def test_the_smoke_profile_survives_a_killed_worker(tmp_path: Path, make_site: Callable[[str], Any]) -> None:
    check_backfill(make_site, tmp_path, PER_PAIR_STAGES, {}, seconds=5400)
