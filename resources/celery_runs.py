"""Runs on Celery workers: Dagster's own launcher, which also notices a worker that is gone.

Needs the `distributed` extra; nothing else imports this module, `dagster.yaml` names it.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, Self, cast

import dagster as dg
from celery import states
from dagster._core.launcher import CheckRunHealthResult, ResumeRunContext, WorkerStatus
from dagster._grpc.types import ResumeRunArgs
from dagster._serdes import ConfigurableClassData, pack_value
from dagster_celery.config import TASK_RESUME_JOB_NAME
from dagster_celery.launcher import CeleryRunLauncher
from dagster_celery.tags import DAGSTER_CELERY_TASK_ID_TAG

_ANSWER_SECONDS: Final = 2.0


class WatchedCeleryRunLauncher(CeleryRunLauncher):
    """`CeleryRunLauncher` that asks the worker itself whether it still has the run, and that can resume it.

    What a killed worker was doing stays STARTED in the result backend for ever, so Dagster's launcher (0.29.27)
    never misses it; a resumed run that waits for a free worker looks lost to it; its own way of resuming names
    the task's argument wrongly; and a run that it has stopped is not said to be, so that monitoring would resume it.

    Args:
        worker_timeout_seconds: how long nobody may know of a started run before it counts as lost.
        inst_data: Dagster's record of this configuration.
        celery: what `CeleryRunLauncher` takes.
    """

    def __init__(
        self, worker_timeout_seconds: float, inst_data: ConfigurableClassData | None = None, **celery: Any
    ) -> None:
        self._worker_timeout_seconds = worker_timeout_seconds
        self._missed_since: dict[str, float] = {}
        super().__init__(inst_data=inst_data, **celery)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """The configuration of `CeleryRunLauncher` and `worker_timeout_seconds`."""
        return {
            **cast(dict[str, Any], super().config_type()),
            "worker_timeout_seconds": dg.Field(
                float, default_value=30.0, description="How long nobody may know of a started run before it is lost."
            ),
        }

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """The launcher that `dagster.yaml` describes."""
        return cls(inst_data=inst_data, **config_value)

    def resume_run(self, context: ResumeRunContext) -> None:
        """Send a run whose worker is lost to the queue again; it goes on from what is on disk."""
        run = context.dagster_run
        if run.job_code_origin is None:
            raise dg.DagsterInvariantViolationError(f"run {run.run_id} does not say where its code is")
        arguments = ResumeRunArgs(run.job_code_origin, run.run_id, self._instance.get_ref(), True)
        task = self.celery.signature(
            TASK_RESUME_JOB_NAME, kwargs={"resume_job_args_packed": pack_value(arguments)}, immutable=True
        )
        self._launch_celery_task_run(run, task, TASK_RESUME_JOB_NAME)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, which saves its checkpoint and ends; False where it is over or not there.

        One that does not end is called cancelled by run monitoring after `cancel_timeout_seconds`.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or DAGSTER_CELERY_TASK_ID_TAG not in run.tags:
            return False
        self._instance.report_run_canceling(run)
        return super().terminate(run_id)

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether a run that Dagster calls started is waited for, worked on or lost.

        An unreachable broker raises its own error, which the monitoring daemon logs: nothing is known then.
        """
        task = self.celery.AsyncResult(run.tags[DAGSTER_CELERY_TASK_ID_TAG])
        state = task.state
        if state == states.STARTED and not self._unanswered(task.id, task.info["hostname"]):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        if state in states.UNREADY_STATES - {states.STARTED}:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "waits for a worker")
        self._missed_since.pop(task.id, None)
        # The monitoring daemon reads the run again before it acts, so one that has just ended is left alone.
        return CheckRunHealthResult(WorkerStatus.FAILED, f"Celery task {state}, but no worker has the run.")

    def _unanswered(self, task_id: str, worker: str) -> bool:
        """True once the worker was silent about the task for longer than the timeout."""
        inspect = self.celery.control.inspect(destination=[worker], timeout=_ANSWER_SECONDS, limit=1)
        if any(task_id in tasks for tasks in (inspect.query_task(task_id) or {}).values()):
            self._missed_since.pop(task_id, None)
            return False
        now = time.monotonic()
        return now - self._missed_since.setdefault(task_id, now) > self._worker_timeout_seconds
