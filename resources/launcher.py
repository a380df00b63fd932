"""Runs as processes of this machine that are missed when they die, and that can be stopped without their server."""

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEventType
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

_STARTED: Final = re.compile(r"Started process for run \(pid: (\d+)\)")
# How far a clock may be set back between two looks.
_CLOCK_SECONDS: Final = 2.0


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
        if process is None or process.lives:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, msg=f"process {process.number} of the run ended")

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, through its code server or, where that is gone, by a signal to its process."""
        try:
            if super().terminate(run_id):  # type: ignore[no-untyped-call]
                return True
        except (DagsterUserCodeProcessError, DagsterUserCodeUnreachableError):
            pass
        process = self.process_of(run_id)
        if process is None or not process.lives:
            return False
        os.kill(process.number, signal.SIGINT)
        return True

    def process_of(self, run_id: str) -> "RunProcess | None":
        """The process that a run was started as; None where it has told none."""
        for entry in self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT):
            if found := _STARTED.match((entry.dagster_event.message or "") if entry.dagster_event else ""):
                return RunProcess(int(found.group(1)), entry.timestamp)
        return None


@dataclass(frozen=True)
class RunProcess:
    """A process that has said its number.

    Attributes:
        number: its process id.
        told: when it said so, seconds since 1970.
    """

    number: int
    told: float

    @property
    def lives(self) -> bool:
        """True while it runs; a later process of the same number is another one, wherever there is a /proc."""
        try:
            os.kill(self.number, 0)
        except (ProcessLookupError, PermissionError):
            return False
        try:
            # Behind the name, which may hold spaces: the state, and 19 fields later the start in ticks after the boot.
            fields = Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()
            since_boot = float(Path("/proc/uptime").read_text().split()[0])
        except OSError:
            return not Path("/proc/self").exists()
        started = time.time() - since_boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        # A killed process keeps its number until its parent has asked for it.
        return fields[0] != "Z" and started < self.told + _CLOCK_SECONDS
