"""What Dagster adds to a stage and to a partition: in process, in processes, through the daemon, through Celery.

Run with `python benchmarks/orchestration.py [--celery]`. First a chain of eight assets that do nothing, so that all
time is orchestration; then the core graph of each pair with everything made before, so that nothing is computed:
what is left is verifying, describing, checking and recording. `--celery` needs redis-server and the extra
`distributed`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from _machine import machine_line

from archetype_dagster.definitions import build_defs
from archetype_dagster.jobs import PER_PAIR_STAGES, TRAINING
from archetype_dagster.settings import PAIRS, load_settings
from resources.instance import open_instance
from resources.services import Services
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource
from resources.ui_client import launch_backfill

CHAIN = 8
REPEATS = 3
CELERY_FILE = Path(__file__).parents[1] / "deploy" / "celery.yaml"
SMALL = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-02-10T00:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-01-25T00:00:00Z",
    "splits.validation_start": "2023-01-25T00:00:00Z",
    "splits.validation_end": "2023-02-01T00:00:00Z",
    "splits.test_start": "2023-02-01T00:00:00Z",
    "splits.test_end": "2023-02-10T00:00:00Z",
    "planner.horizon_bars": 12,
    "planner.num_trajectories": 400,
    "codebook.epochs": 3,
    "codebook.hidden_size": 16,
    "selection.total_steps": 12_000,
    "refinement.total_steps": 6_000,
    "evaluation.random_archetype_draws": 3,
    "evaluation.leak_check_cuts": 2,
}


def _link(number: int) -> dg.AssetsDefinition:
    @dg.asset(name=f"link_{number}", deps=[f"link_{number - 1}"] if number else [])
    def link() -> None:
        return None

    return link


def chain_job() -> dg.JobDefinition:
    """The chain as a job, for processes to find."""
    job = dg.define_asset_job("chain", executor_def=dg.multiprocess_executor)
    return dg.Definitions(assets=[_link(n) for n in range(CHAIN)], jobs=[job]).resolve_job_def("chain")


def fastest(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def chain_rows(home: Path) -> dict[str, float]:
    """Seconds per asset of the chain that does nothing."""
    chain = [_link(number) for number in range(CHAIN)]
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    rows = {}
    with dg.DagsterInstance.ephemeral() as instance:
        rows["chain, in process, in memory"] = fastest(
            lambda: dg.materialize(chain, instance=instance, run_config=quiet)
        )
    with open_instance(home) as instance:
        rows["chain, in process, SQLite"] = fastest(lambda: dg.materialize(chain, instance=instance, run_config=quiet))
        job = dg.reconstructable(chain_job)
        rows["chain, a process an asset"] = fastest(
            lambda: dg.execute_job(job, instance, run_config=quiet, raise_on_error=True), repeats=1
        )
    return {name: seconds / CHAIN for name, seconds in rows.items()}


def graph_rows(home: Path, file: Path, result: Path) -> dict[str, float]:
    """Seconds per stage of a pair's core graph of which nothing is computed, and how they are spent."""
    definitions = build_defs(
        {
            "settings": SettingsResource(settings_file=str(file)),
            "store": ArtifactStore(root=str(result)),
            "tracking": TrackingResource(enabled=False),
        }
    )
    job = definitions.resolve_job_def(TRAINING)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    described = 0.0
    with open_instance(home) as instance:
        for pair in PAIRS:
            job.execute_in_process(partition_key=pair, instance=instance, run_config=quiet)

        def again() -> None:
            nonlocal described
            done = job.execute_in_process(partition_key=PAIRS[0], instance=instance, run_config=quiet)
            made = [event for event in done.all_events if event.is_step_materialization]
            shown = [event.step_materialization_data.materialization.metadata for event in made]
            assert all(facts["reused"].value for facts in shown)
            described = sum(float(facts["seconds"].value) for facts in shown)

        whole = fastest(again)
    return {
        "core graph reused, in process, SQLite": whole / len(PER_PAIR_STAGES),
        "  of which describing it in pictures and tables": described / len(PER_PAIR_STAGES),
    }


def variables_of(file: Path, result: Path) -> dict[str, str]:
    """What makes the settings and the folder the defaults of a process."""
    return {"ARCHETYPE_SETTINGS": str(file), "ARCHETYPE_RESULT": str(result), "ARCHETYPE_TRACKING_URI": "off"}


def daemon_rows(home: Path, name: str, file: Path, result: Path) -> dict[str, float]:
    """Seconds per partition of a backfill in which nothing is computed, through the daemon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    services = Services(home, port, variables_of(file, result), print)
    with services.running(), dg.DagsterInstance.from_config(str(home)) as instance:
        address = f"http://127.0.0.1:{port}"
        _wait(lambda: _answers(port))
        began = time.time()
        backfill = launch_backfill(address, TRAINING, PAIRS, run_config={}, tags={})
        filters = dg.RunsFilter(tags={"dagster/backfill": backfill}, statuses=[dg.DagsterRunStatus.SUCCESS])
        _wait(lambda: instance.get_runs_count(filters) == len(PAIRS))
        stats = [instance.get_run_stats(run.run_id) for run in instance.get_runs(filters)]
    ends = max(float(stat.end_time or 0.0) for stat in stats)

    def mean(of: Callable[[Any], float]) -> float:
        return sum(of(stat) for stat in stats) / len(stats)

    return {
        f"{name}: whole backfill, per partition": (ends - began) / len(stats),
        "  until its run is in the queue": mean(lambda stat: stat.enqueued_time - began),
        "  until it is taken from the queue": mean(lambda stat: stat.launch_time - stat.enqueued_time),
        "  until its process has started": mean(lambda stat: stat.start_time - stat.launch_time),
        "  the run": mean(lambda stat: stat.end_time - stat.start_time),
    }


def _wait(ready: Callable[[], bool], seconds: float = 900) -> None:
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError("waited for a quarter of an hour")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ready(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether Redis or a worker has said that it is ready; an error with what it said where it has ended."""
    said = log.read_text()
    if process.poll() is not None:
        raise RuntimeError(f"{log.stem} ended by itself:\n{said}")
    return "ready" in said.lower()


@contextmanager
def celery(home: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Redis and two workers on the loopback, and an instance whose runs they take."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    broker = f"redis://127.0.0.1:{port}/0"
    with open_instance(home):
        pass
    launcher = {
        "module": "resources.celery_runs",
        "class": "WatchedCeleryRunLauncher",
        "config": {"broker": broker, "backend": broker},
    }
    configured = {**yaml.safe_load((home / "dagster.yaml").read_text()), "run_launcher": launcher}
    (home / "dagster.yaml").write_text(yaml.safe_dump(configured))
    addresses = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker, "DAGSTER_HOME": str(home)}
    # The worker's command looks for Celery's on the search path.
    addresses["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["-A", "dagster_celery.app", "-y", str(CELERY_FILE), "-q", "dagster"]
    worker = ["dagster-celery", "worker", "start", *options]
    processes = {
        "redis": ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home)],
        **{name: [*worker, "-n", name, "--", "--concurrency", "1"] for name in ("first", "second")},
    }
    environment = {**os.environ, **variables, **addresses}
    with ExitStack() as stack:
        for name, command in processes.items():
            log = home / f"{name}.log"
            file = stack.enter_context(log.open("wb"))
            started = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
            stack.callback(started.wait)
            stack.callback(os.killpg, started.pid, signal.SIGTERM)
            _wait(lambda started=started, log=log: _ready(started, log))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--celery", action="store_true", help="measure the path over Redis and Celery too")
    with_celery = parser.parse_args().celery
    if with_celery and shutil.which("redis-server") is None:
        sys.exit("--celery needs redis-server on the search path")
    print(machine_line("dagster"))
    base = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, result = folder / "settings.yaml", folder / "result"
        file.write_text(yaml.safe_dump(load_settings("smoke", SMALL).model_dump(mode="json")))
        parts: list[Callable[[], dict[str, float]]] = [
            lambda: chain_rows(folder / "home"),
            lambda: graph_rows(folder / "home", file, result),
            lambda: daemon_rows(folder / "home", "daemon, a process a run", file, result),
        ]
        if with_celery:
            parts.append(lambda: celery_rows(folder / "celery", file, result))
        for part in parts:
            for label, seconds in part().items():
                base = base or seconds
                print(f"{label:<55} {seconds:9.3f} s {seconds / base:9.1f} x", flush=True)


def celery_rows(home: Path, file: Path, result: Path) -> dict[str, float]:
    """As `daemon_rows`, with the runs taken by two Celery workers."""
    with celery(home, variables_of(file, result)):
        return daemon_rows(home, "daemon, Celery", file, result)


if __name__ == "__main__":
    main()
