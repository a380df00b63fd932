"""A deployment on this machine: PostgreSQL and Redis from Debian on loopback, a code server, a daemon and workers."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {seconds} s")
        time.sleep(0.1)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all its children as a power cut would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


class Site:
    """A Dagster home with the shipped configuration, only impatient, and the processes that use it."""

    def __init__(self, home: Path, secrets: Mapping[str, str], code: str) -> None:
        self.home = home
        self.code_port = free_port()
        self.environment = {**os.environ, **secrets, "DAGSTER_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        config = yaml.safe_load((REPOSITORY / "deploy" / "dagster.yaml").read_text())
        config["run_launcher"]["config"]["worker_timeout_seconds"] = 3.0
        config["run_monitoring"]["poll_interval_seconds"] = 1
        config["run_queue"]["dequeue_interval_seconds"] = 1
        servers = {"load_from": [{"grpc_server": {"host": "127.0.0.1", "port": self.code_port}}]}
        home.mkdir()
        (home / "dagster.yaml").write_text(yaml.safe_dump(config))
        (home / "workspace.yaml").write_text(yaml.safe_dump(servers))
        (home / "location.py").write_text(code)

    @contextmanager
    def running(self, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process in a session of its own, killed at the end; what it prints is kept in the home."""
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.home, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            kill(process)

    @contextmanager
    def code_server(self) -> Iterator[None]:
        where = ["--host", "127.0.0.1", "--port", str(self.code_port)]
        with self.running("code", "dagster", "api", "grpc", "--python-file", "location.py", *where):
            wait_until(lambda: listens(self.code_port), 240, "the code's loading")
            yield

    def daemon(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return self.running("daemon", "dagster-daemon", "run", "-w", "workspace.yaml")

    def worker(self, name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        options = ["-y", str(REPOSITORY / "deploy" / "celery.yaml"), "-q", "dagster", "-n", name]
        options += ["--", "--concurrency", "1"]
        return self.running(name, "dagster-celery", "worker", "start", "-A", "dagster_celery.app", *options)

    def backfill(self, job: str, partitions: Sequence[str]) -> None:
        self._job("backfill", job, "--noprompt", "--partitions", ",".join(partitions))

    def launch(self, job: str) -> None:
        self._job("launch", job)

    def _job(self, what: str, job: str, *options: str) -> None:
        with self.running(what, "dagster", "job", what, "-w", "workspace.yaml", "-j", job, *options) as process:
            assert process.wait(timeout=240) == 0, (self.home / f"{what}.log").read_text()

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        wait_until(condition, seconds, what)


def postgres_programs() -> Path:
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    return found[-1]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A new PostgreSQL cluster that listens on loopback with a password; its URL with the driver that is installed."""
    programs, port = postgres_programs(), free_port()
    # The server refuses to run as root, and root's temporary folders are closed to others.
    account = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    home = Path(tempfile.mkdtemp(prefix="archetype-postgres-"))
    try:
        (home / "password").write_text("postgres-test-password")
        if os.geteuid() == 0:
            shutil.chown(home, account)
            shutil.chown(home / "password", account)
        made = [str(programs / "initdb"), "-D", str(home / "data"), "-U", "dagster", "--no-sync"]
        made += ["-A", "scram-sha-256", "--pwfile", str(home / "password"), "-E", "UTF8", "--no-locale"]
        subprocess.run(made, check=True, capture_output=True, user=account, cwd=home)
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(home), "-c", "fsync=off"]
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", str(home / "data"), *options],
            user=account,
            cwd=home,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: listens(port), 60, "PostgreSQL's start")
            yield f"postgresql+psycopg2://dagster:postgres-test-password@127.0.0.1:{port}/postgres"
        finally:
            # Fast shutdown: open connections are closed, not waited for.
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis that listens on loopback with a password and keeps nothing on disk."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed (Debian: redis-server)")
    port = free_port()
    quiet = ["--save", "", "--appendonly", "no", "--requirepass", "redis-test-password"]
    server = subprocess.Popen(
        [program, "--bind", "127.0.0.1", "--port", str(port), *quiet], stdout=subprocess.DEVNULL, cwd="/"
    )
    try:
        wait_until(lambda: listens(port), 60, "Redis's start")
        yield f"redis://:redis-test-password@127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture
def make_site(tmp_path: Path, postgres_url: str, redis_url: str) -> Callable[[str], Site]:
    """The home and processes of a deployment whose code location is the given text."""
    urls = {"DAGSTER_POSTGRES_URL": postgres_url, "CELERY_BROKER_URL": redis_url, "CELERY_RESULT_BACKEND": redis_url}
    return lambda code: Site(tmp_path / "home", urls, code)
