"""A run whose process dies goes on in another one; a run that was stopped does not."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import dagster as dg
import pytest

pytest.importorskip("dagster_celery", reason="the distributed extra is not installed")

CODE = """\
import time

import dagster as dg


@dg.op
def wait():
    time.sleep(3600)


@dg.job(executor_def=dg.in_process_executor)
def waiting():
    wait()


defs = dg.Definitions(jobs=[waiting])
"""
PROCESS = re.compile(r"Started process for (?:run|resuming job) \(pid: (\d+)\)")


def processes(instance: dg.DagsterInstance, run_id: str) -> list[int]:
    """Numbers of the processes that have worked on a run's step, in order."""
    messages = [entry.message for entry in instance.all_logs(run_id)]
    started = [int(found[1]) for message in messages if (found := PROCESS.match(message))]
    begun = sum(message.startswith("Executing steps in process") for message in messages)
    return started[:begun]


@pytest.mark.endurance
@pytest.mark.timeout(900)
def test_a_killed_process_is_replaced_and_a_stopped_run_stays_stopped(make_site: Callable[[str], Any]) -> None:
    site = make_site(CODE)
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(os, "environ", site.environment)
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(site.home)))
        instance.get_runs_count()
        stack.enter_context(site.worker("only"))
        stack.enter_context(site.code_server())
        stack.enter_context(site.daemon())
        site.launch("waiting")
        (run,) = instance.get_runs()

        site.wait_until(lambda: len(processes(instance, run.run_id)) == 1, "the run's start")
        (first,) = processes(instance, run.run_id)
        os.kill(first, signal.SIGKILL)
        site.wait_until(lambda: len(processes(instance, run.run_id)) == 2, "the run's second start")
        assert processes(instance, run.run_id)[1] != first

        assert instance.run_launcher.terminate(run.run_id)
        site.wait_until(lambda: instance.get_run_by_id(run.run_id).is_finished, "the run's end")
        # Run monitoring looks every second.
        time.sleep(3)
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.CANCELED
        assert len(processes(instance, run.run_id)) == 2
        assert not instance.run_launcher.terminate(run.run_id)
