"""The processes behind the UI: code server, web server and daemon, each started again when it dies."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import dagster as dg

from archetype_dagster.artifacts import write_bytes_atomically, write_json
from archetype_dagster.errors import ArchetypeError

MODULE: Final = "archetype_dagster.definitions"
LOCATION: Final = "archetype_dagster"
WORKSPACE_FILE: Final = "workspace.yaml"
ADDRESS_FILE: Final = "ui.json"
_START_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 20.0
_CHECK_SECONDS: Final = 0.5
_GOING_ON: Final = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
# A process that dies this often within its first seconds does so for a reason that starting again does not mend.
_QUICK_DEATHS: Final = 5
_QUICK_SECONDS: Final = 20.0


class ServiceError(ArchetypeError):
    """A process behind the UI cannot be kept alive."""


@dataclass
class Service:
    """One process that is wanted alive.

    Attributes:
        name: what messages call it.
        command: its command line.
        process: the living one.
        started: when that began, seconds of the monotonic clock.
        quick_deaths: how often in a row it died soon after its start.
    """

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    quick_deaths: int = 0

    def start(self, environment: Mapping[str, str], log: Path) -> None:
        """Start the process in a session of its own, so that a terminal's signal reaches it through us alone."""
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.command, env=dict(environment), stdout=stream, stderr=stream, start_new_session=True
            )
        self.started = time.monotonic()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process is not None and self.process.poll() is None


@dataclass
class Services:
    """Code server, web server and daemon over one instance.

    A code server of its own, so that runs outlive web server and daemon: they are its children.

    Attributes:
        home: folder of the instance; logs and the workspace file go there.
        port: port of the UI on 127.0.0.1.
        environment: further variables of the processes.
        note: told what happens.
    """

    home: Path
    port: int
    environment: Mapping[str, str]
    note: Callable[[str], None]
    services: dict[str, Service] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everything started; stopped when the context ends, however it ends."""
        # Not in the instance's folder, because the path of a socket holds about a hundred bytes.
        with tempfile.TemporaryDirectory(prefix="archetype-") as folder:
            socket = Path(folder) / "code.sock"
            workspace = self.home / WORKSPACE_FILE
            server = {"grpc_server": {"socket": str(socket), "location_name": LOCATION}}
            write_bytes_atomically(workspace, _yaml({"load_from": [server]}))
            python = [sys.executable, "-m"]
            commands = {
                "code server": [
                    *(*python, "dagster", "code-server", "start", "-m", MODULE, "--location-name", LOCATION),
                    *("--socket", str(socket)),
                ],
                "web server": [
                    *(*python, "dagster_webserver", "-h", "127.0.0.1", "-p", str(self.port), "-w", str(workspace)),
                ],
                "daemon": [*python, "dagster._daemon", "run", "-w", str(workspace)],
            }
            self.services = {name: Service(name, command) for name, command in commands.items()}
            try:
                self._start("code server")
                self._wait_for(socket)
                self._start("web server")
                self._start("daemon")
                write_json(self.home / ADDRESS_FILE, {"address": f"http://127.0.0.1:{self.port}"})
                yield
            finally:
                (self.home / ADDRESS_FILE).unlink(missing_ok=True)
                self._stop_runs()
                self._stop()
                workspace.unlink(missing_ok=True)

    def watch(self) -> None:
        """Start again what has died, for ever.

        Raises:
            ServiceError: one of them dies as soon as it is started.
        """
        while True:
            time.sleep(_CHECK_SECONDS)
            self.revive()

    def revive(self) -> list[str]:
        """Start again what has died; returns the names."""
        dead = [service for service in self.services.values() if not service.alive]
        for service in dead:
            lived = time.monotonic() - service.started
            service.quick_deaths = service.quick_deaths + 1 if lived < _QUICK_SECONDS else 0
            code = service.process.returncode if service.process else None
            if service.quick_deaths >= _QUICK_DEATHS:
                raise ServiceError(f"the {service.name} ends with code {code} as soon as it is started: {self.log}")
            self.note(f"the {service.name} ended with code {code}; starting it again")
            if service.name == "code server":
                socket = Path(service.command[-1])
                socket.unlink(missing_ok=True)
            self._start(service.name)
        return [service.name for service in dead]

    @property
    def log(self) -> Path:
        """Where all three write."""
        return self.home / "services.log"

    def _start(self, name: str) -> None:
        variables = {**os.environ, **self.environment, "DAGSTER_HOME": str(self.home)}
        self.services[name].start(variables, self.log)

    def _wait_for(self, socket: Path) -> None:
        server, until = self.services["code server"], time.monotonic() + _START_SECONDS
        while not socket.exists():
            if not server.alive or time.monotonic() > until:
                raise ServiceError(f"the code server did not start: {self.log}")
            time.sleep(_CHECK_SECONDS / 5)

    def _stop_runs(self) -> None:
        """Interrupt the runs that are going on, so that they save what they have and leave no process behind."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            going = instance.get_runs(dg.RunsFilter(statuses=list(_GOING_ON)))
            stopped = [run.run_id for run in going if instance.run_launcher.terminate(run.run_id)]
            if stopped:
                self.note(f"stopping {len(stopped)} runs; started again, they go on from what was saved")
            until = time.monotonic() + _STOP_SECONDS
            while stopped and time.monotonic() < until:
                runs = instance.get_runs(dg.RunsFilter(run_ids=stopped))
                stopped = [run.run_id for run in runs if not run.is_finished]
                time.sleep(_CHECK_SECONDS / 5)

    def _stop(self) -> None:
        living = [service.process for service in self.services.values() if service.process is not None]
        for process in living:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        for process in living:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _yaml(value: object) -> bytes:
    import yaml

    return yaml.safe_dump(value).encode()
