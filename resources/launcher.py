"""Runs as processes of this machine that are missed when they die, and that can be stopped without their server."""

import os
import re
import signal
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEventType
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")


class LocalRunLauncher(DefaultRunLauncher):
    """Dagster's launcher of one process a run, whose runs can be checked and stopped by the process itself.

    Dagster's own asks the code server, which knows nothing of the runs that a killed one has left behind.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: run monitoring asks, and reports a run failed whose process is gone."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the run's process lives; a run that never told its process counts as running."""
        process = self.process_of(run.run_id)
        if process is None or is_process_of_a_run(process):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, msg=f"process {process} of the run ended")

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, through its code server or, where that is gone, by a signal to its process."""
        try:
            if super().terminate(run_id):  # type: ignore[no-untyped-call]
                return True
        except (DagsterUserCodeProcessError, DagsterUserCodeUnreachableError):
            pass
        process = self.process_of(run_id)
        if process is None or not is_process_of_a_run(process):
            return False
        os.kill(process, signal.SIGINT)
        return True

    def process_of(self, run_id: str) -> int | None:
        """Number of the process that a run was started as; None where it has told none."""
        for entry in self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT):
            if found := _STARTED.match((entry.dagster_event.message or "") if entry.dagster_event else ""):
                return int(found.group(1))
        return None


def is_process_of_a_run(process: int) -> bool:
    """True where a Python process of that number lives; where there is no /proc, any process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    about = Path(f"/proc/{process}")
    try:
        # A killed process keeps its number until its parent has asked for it; a reused number is another program's.
        state = (about / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"python" in (about / "cmdline").read_bytes()
    except OSError:
        return not about.parent.is_dir()
