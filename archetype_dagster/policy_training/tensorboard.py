"""Training curves as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from archetype_dagster.types import Progress


class TensorboardProgress:
    """A `Progress` that also writes every metric as a scalar, by step.

    Args:
        inner: what else is told.
        directory: folder of the event files; a training that goes on adds one more.
    """

    def __init__(self, inner: Progress, directory: Path) -> None:
        # Here, because it is slow to load and few need it.
        from torch.utils.tensorboard import SummaryWriter

        self.inner = inner
        self.writer = SummaryWriter(str(directory))

    def start(self, description: str, total: int) -> None:
        """Open a task."""
        self.inner.start(description, total)

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Report, and add a point to each curve; it is on disk when this returns."""
        self.inner.advance(completed, metrics)
        for name, value in (metrics or {}).items():
            self.writer.add_scalar(name, value, completed)
        self.writer.flush()

    def finish(self) -> None:
        """Close the task and the file."""
        self.writer.close()
        self.inner.finish()
