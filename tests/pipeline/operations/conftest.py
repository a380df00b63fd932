"""A real code server, web server and daemon over a fresh instance, with the tiny settings."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from archetype_dagster.artifacts import MANIFEST_NAME
from archetype_dagster.settings import load_settings
from resources.instance import open_instance
from resources.services import Services
from resources.ui_client import launch_backfill

RUN = """
mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
TERMINATE = """
mutation($run: String!) { terminateRun(runId: $run) { __typename ... on TerminateRunFailure { message }
  ... on PythonError { message } } }
"""
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "archetype_dagster"}
WILL_RETRY = "dagster/will_retry"


class Stack:
    """The services, asked over GraphQL and looked at through the instance."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], instance_changes: Mapping[str, Any]) -> None:
        self.home, self.result = folder / "home", folder / "result"
        self.file = folder / "settings.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        tree = load_settings("smoke", settings)
        self.file.write_text(yaml.safe_dump(tree.model_dump(mode="json")))
        with open_instance(self.home):
            pass
        # The daemon's pauses are for machines that run for weeks.
        quick = {"run_monitoring": {"poll_interval_seconds": 2}, **instance_changes}
        configured = yaml.safe_load((self.home / "dagster.yaml").read_text())
        for section, values in quick.items():
            configured[section] = {**configured[section], **values}
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(configured))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.said: list[str] = []
        self.services = Services(self.home, self.port, self.environment, self.said.append)
        self.instance: dg.DagsterInstance

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ARCHETYPE_SETTINGS": str(self.file),
            "ARCHETYPE_RESULT": str(self.result),
            "ARCHETYPE_TRACKING_URI": "off",
            "OMP_NUM_THREADS": "1",
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Stack]:
        with self.services.running(), dg.DagsterInstance.from_config(str(self.home)) as self.instance:
            self.wait(self._answers, "the web server", seconds=120)
            yield self

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.load(answer)
        assert "errors" not in told, told
        return told["data"]

    def backfill(self, job: str, partitions: list[str], overrides: Mapping[str, Any], **tags: str) -> str:
        """Start a backfill of a job; returns its id."""
        config = {"resources": {"settings": {"config": {"overrides": dict(overrides)}}}}
        named = {key.replace("__", "/"): value for key, value in tags.items()}
        return launch_backfill(self.address, job, partitions, run_config=config, tags=named)

    def launch(self, job: str, partition: str, *assets: str, **tags: str) -> str:
        """Start a run as the UI does, over some assets of a job; returns its id."""
        every = {"dagster/partition": partition, **{key.replace("__", "/"): value for key, value in tags.items()}}
        params = {
            "selector": {**REPOSITORY, "jobName": job, "assetSelection": [{"path": [asset]} for asset in assets]},
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in every.items()]},
        }
        told = self.ask(RUN, params=params)["launchRun"]
        assert told["__typename"] == "LaunchRunSuccess", told
        return told["run"]["runId"]

    def run(self, run_id: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def wait_for_run(self, run_id: str, *, seconds: float = 240) -> list[dg.DagsterRun]:
        """A run and those that were started in its place, oldest first, once the last of them has ended."""

        def done() -> list[dg.DagsterRun]:
            group = self.instance.get_run_group(run_id)
            runs = [self.run(run_id)] if group is None else list(group[1])
            *_, last = runs = sorted(runs, key=_tries)
            return runs if _ended(last) else []

        return self.wait(done, f"run {run_id}", seconds=seconds)

    def log(self, run_id: str) -> str:
        return "\n".join(record.message for record in self.instance.all_logs(run_id))

    def terminate(self, run_id: str) -> None:
        told = self.ask(TERMINATE, run=run_id)["terminateRun"]
        assert told["__typename"] == "TerminateRunSuccess", told

    def runs(self, backfill: str) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill})))

    def wait(self, ready: Callable[[], Any], what: str, *, seconds: float = 240) -> Any:
        """The first true answer; what has died meanwhile is started again, as `archetype ui` does."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = ready()
            if found:
                return found
            self.services.revive()
            time.sleep(0.25)
        log = self.services.log.read_text(errors="replace")[-3000:]
        pytest.fail(f"waited {seconds:.0f} s for {what}\n{log}")

    def wait_for_backfill(self, backfill: str, *, count: int, seconds: float = 240) -> list[dg.DagsterRun]:
        """The last run of each partition of a backfill, once all `count` of them have ended for good."""

        def done() -> list[dg.DagsterRun]:
            last: dict[str, dg.DagsterRun] = {}
            for run in self.runs(backfill):
                before = last.setdefault(run.tags["dagster/partition"], run)
                if _tries(run) > _tries(before):
                    last[run.tags["dagster/partition"]] = run
            over = [run for run in last.values() if _ended(run)]
            return over if len(over) == count else []

        return self.wait(done, f"backfill {backfill}", seconds=seconds)

    def processes(self) -> list[int]:
        """Numbers of the processes that execute the runs which have started and not ended."""
        going = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        found = [self.instance.run_launcher.process_of(run.run_id) for run in going]
        return [process.number for process in found if process is not None and process.lives]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/server_info", timeout=5):
                return True
        except OSError:
            return False


def _ended(run: dg.DagsterRun) -> bool:
    """Ended for good: a failed run says a moment later whether it is tried again."""
    if run.status is dg.DagsterRunStatus.FAILURE:
        return run.tags.get(WILL_RETRY) == "false"
    return run.status in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED)


def _tries(run: dg.DagsterRun) -> int:
    return int(run.tags.get("dagster/retry_number", "0"))


@pytest.fixture(scope="session")
def make_stack(tmp_path_factory: pytest.TempPathFactory, tiny: Mapping[str, Any]) -> Callable[..., Stack]:
    """Builds a `Stack` with the tiny settings, or those of the smoke profile, and changes."""

    def make(
        name: str, settings: Mapping[str, Any] | None = None, *, smoke: bool = False, **instance: Mapping[str, Any]
    ) -> Stack:
        return Stack(tmp_path_factory.mktemp(name), {**({} if smoke else tiny), **(settings or {})}, instance)

    return make


@pytest.fixture(scope="session")
def differences() -> Callable[[Path, Path], list[str]]:
    """Names of the files below two folders that are not the same to the byte; manifests may name two revisions."""

    def content(file: Path) -> Any:
        if file.name != MANIFEST_NAME:
            return file.read_bytes()
        return {name: value for name, value in json.loads(file.read_text()).items() if name != "git_revision"}

    def compare(one: Path, other: Path) -> list[str]:
        found = [
            {str(file.relative_to(root)): content(file) for file in root.rglob("*") if file.is_file()}
            for root in (one, other)
        ]
        return sorted(name for name in found[0].keys() | found[1].keys() if found[0].get(name) != found[1].get(name))

    return compare
