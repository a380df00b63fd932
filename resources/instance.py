"""The persistent Dagster instance of the command line: made once, and swept of runs whose process was killed."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dagster as dg
from filelock import FileLock, Timeout

from archetype_dagster.artifacts import write_bytes_atomically

GPU_POOL: Final = "gpu"
OWNER_TAG: Final = "archetype/owner"
_DAGSTER_YAML: Final = """\
# Written once by `archetype`; edit freely.
telemetry: {{enabled: false}}
nux: {{enabled: false}}
run_launcher: {{module: resources.launcher, class: LocalRunLauncher}}
concurrency:
  # By runs, so that a run waits in the queue and not in a process that polls.
  pools: {{default_limit: 1, granularity: run}}
  runs: {{max_concurrent_runs: {runs}}}
run_queue:
  dequeue_interval_seconds: 2
  dequeue_use_threads: true
  dequeue_num_workers: {runs}
  # A run that meets a code server on its way up goes back into the queue.
  max_user_code_failure_retries: 5
  user_code_failure_retry_delay: 10
run_monitoring:
  enabled: true
  poll_interval_seconds: 10
  start_timeout_seconds: 300
  cancel_timeout_seconds: 60
  free_slots_after_run_end_seconds: 5
  # A run may ask for less with the tag dagster/max_runtime.
  max_runtime_seconds: 86400
# Runs whose process was killed; a stage that failed by itself has its own retries.
run_retries: {{enabled: true, max_retries: 3, retry_on_asset_or_op_failure: false}}
backfills: {{use_threads: true, num_workers: 2}}
schedules: {{use_threads: true, num_workers: 2}}
sensors: {{use_threads: true, num_workers: 2}}
retention:
  sensor: {{purge_after_days: 14}}
  auto_materialize: {{purge_after_days: 14}}
"""
_UNFINISHED: Final = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def instance_home() -> Path:
    """`$DAGSTER_HOME`, or `.dagster` in the working directory."""
    return Path(os.environ.get("DAGSTER_HOME") or ".dagster").expanduser().resolve()


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The instance in `home`, which is prepared on first use; runs of dead processes are reported failed."""
    home.mkdir(parents=True, exist_ok=True)
    # Two processes that initialise one home at the same time corrupt its database.
    with FileLock(home / ".init.lock"):
        if not (home / "dagster.yaml").exists():
            # Each run is one process that keeps a core busy.
            runs = max(2, os.cpu_count() or 1)
            write_bytes_atomically(home / "dagster.yaml", _DAGSTER_YAML.format(runs=runs).encode())
        instance = dg.DagsterInstance.from_config(str(home))
        instance.get_runs_count()
        # The queue learns a pool's default limit only after the first runs in it have been started.
        if GPU_POOL not in instance.event_log_storage.get_concurrency_keys():
            instance.event_log_storage.initialize_concurrency_limit_to_default(GPU_POOL)
        fail_dead_runs(instance, home)
    with instance:
        yield instance


@contextmanager
def run_owner(home: Path) -> Iterator[dict[str, str]]:
    """Tags that mark a run as this process's; the lock behind them ends with the process, however it ends."""
    name = f"{platform.node()}-{os.getpid()}"
    path = _owner_lock(home, name)
    path.parent.mkdir(exist_ok=True)
    with FileLock(path):
        yield {OWNER_TAG: name}
    path.unlink(missing_ok=True)


def fail_dead_runs(instance: dg.DagsterInstance, home: Path) -> list[str]:
    """Report runs failed whose process on this host no longer lives, and free their pool slots.

    Returns their run ids. Runs without an owner, such as those started from the UI, are left alone.
    """
    dead = []
    for run in instance.get_runs(dg.RunsFilter(statuses=list(_UNFINISHED))):
        owner = run.tags.get(OWNER_TAG)
        if owner is None or not owner.startswith(f"{platform.node()}-") or _lives(_owner_lock(home, owner)):
            continue
        instance.report_run_failed(run, f"process {owner} ended without finishing this run")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        dead.append(run.run_id)
    return dead


def _owner_lock(home: Path, owner: str) -> Path:
    return home / "owners" / f"{owner}.lock"


def _lives(lock_file: Path) -> bool:
    if not lock_file.exists():
        return False
    try:
        with FileLock(lock_file, timeout=0):
            pass
    except Timeout:
        return True
    lock_file.unlink(missing_ok=True)
    return False
