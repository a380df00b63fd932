from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resources.launcher import RunProcess
from resources.services import Service, ServiceError, Services

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]
DIES = [sys.executable, "-S", "-c", "raise SystemExit(3)"]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path, 0, {}, lambda message: said.append(message))
    said.clear()
    yield made
    for service in made.services.values():
        if service.process is not None:
            service.process.kill()
            service.process.wait()


said: list[str] = []


def started(services: Services, name: str, command: list[str]) -> Service:
    service = services.services[name] = Service(name, command)
    service.start({}, services.log)
    return service


def wait_until_dead(service: Service) -> None:
    while service.alive:
        time.sleep(0.01)


def test_what_has_died_is_started_again_and_what_lives_is_left_alone(services: Services):
    daemon, web = started(services, "daemon", WAITS), started(services, "web server", WAITS)
    assert daemon.process is not None
    assert web.process is not None
    before, other = daemon.process.pid, web.process.pid
    daemon.process.kill()
    wait_until_dead(daemon)
    assert services.revive() == ["daemon"]
    assert services.revive() == []
    assert daemon.alive
    assert daemon.process.pid != before
    assert web.process.pid == other
    assert said == [f"the daemon ended with code {-signal.SIGKILL}; starting it again"]


def test_what_dies_at_once_again_and_again_ends_it_all(services: Services):
    service = started(services, "web server", DIES)
    with pytest.raises(
        ServiceError, match=r"the web server ends with code 3 as soon as it is started: .*services\.log"
    ):
        for _ in range(10):
            wait_until_dead(service)
            services.revive()
    assert len(said) == 4


def test_a_killed_process_does_not_live_even_before_its_parent_asks():
    process = subprocess.Popen(WAITS)
    run = RunProcess(process.pid, time.time())
    assert run.lives
    process.kill()
    until = time.monotonic() + 30
    while run.lives and time.monotonic() < until:
        time.sleep(0.01)
    # Nobody has waited for it yet, so that its number is still taken.
    assert not run.lives
    process.wait()
    assert not run.lives


def test_a_later_process_of_the_same_number_is_another_one():
    with subprocess.Popen(WAITS) as process:
        assert RunProcess(process.pid, time.time()).lives
        assert not RunProcess(process.pid, time.time() - 3600).lives
        process.kill()
