"""Where long work reports to: the run's log at a bounded rate, or live bars in a terminal."""

import logging
import os
import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import Final

import dagster as dg
from pydantic import Field, PrivateAttr
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from archetype_dagster.types import Progress

_SHOWN_METRICS: Final = 2


class LogProgress:
    """A `Progress` that writes to a log, at most once per `min_seconds`."""

    def __init__(self, log: logging.Logger, title: str, *, min_seconds: float) -> None:
        self._log = log
        self._title = title
        self._min_seconds = min_seconds
        self._total = 0
        self._last = 0.0

    def start(self, description: str, total: int) -> None:
        """Open a task."""
        self._description, self._total, self._last = description, total, time.monotonic()

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Log the state of the task unless the last line is too young."""
        now = time.monotonic()
        if now - self._last >= self._min_seconds:
            self._last = now
            text = f"{self._title}: {self._description} {completed}/{self._total} {format_metrics(metrics)}"
            self._log.info(text.rstrip())

    def finish(self) -> None:
        """Close the task; its result is the stage's metadata."""


class BarProgress:
    """A `Progress` that moves a bar of a shared terminal display."""

    def __init__(self, bars: Bars, title: str) -> None:
        self._bars = bars
        self._title = title
        self._task: TaskID | None = None

    def start(self, description: str, total: int) -> None:
        """Add a bar."""
        self.finish()
        self._task = self._bars.add_task(f"{self._title}: {description}", total=total, metrics="")

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=completed, metrics=format_metrics(metrics))

    def finish(self) -> None:
        """Remove the bar; the stage's closing line replaces it."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None


class ProgressResource(dg.ConfigurableResource["ProgressResource"]):
    """Progress in the run's log, throttled: each line costs milliseconds and a row in the event log."""

    min_seconds: float = Field(default=10.0, ge=0, description="Least time between two progress lines of a task.")

    def open(self, log: logging.Logger, title: str) -> Progress:
        """Progress of one stage."""
        return LogProgress(log, title, min_seconds=self.min_seconds)

    def note(self, log: logging.Logger, message: str) -> None:
        """One line that a person following the run should see."""
        log.info(message)


class ConsoleProgressResource(ProgressResource):
    """Progress as live bars where there is a terminal; notes go to the log and to standard error."""

    _console: Console = PrivateAttr()
    _bars: Bars | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Start the display."""
        # A descriptor of its own: Dagster points the process's standard error at a file while a step runs.
        self._console = Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8"))
        if not self._console.is_interactive:
            return
        self._bars = Bars(
            *bar_columns(), console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._bars.start()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the display and give the terminal back."""
        if self._bars is not None:
            self._bars.stop()
        self._console.file.close()

    def open(self, log: logging.Logger, title: str) -> Progress:
        """Progress of one stage."""
        return super().open(log, title) if self._bars is None else BarProgress(self._bars, title)

    def note(self, log: logging.Logger, message: str) -> None:
        """One line, above the bars."""
        super().note(log, message)
        self._console.print(message, highlight=False)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """The columns of a `BarProgress`: what, how far, how long, and its newest metrics."""
    return (
        TextColumn("  {task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
    )


def format_metrics(metrics: Mapping[str, float] | None) -> str:
    """The first few metrics as `name value` pairs, names without their path, four significant digits."""
    first = islice((metrics or {}).items(), _SHOWN_METRICS)
    return " ".join(f"{name.rsplit('/', 1)[-1]} {value:.4g}" for name, value in first)
