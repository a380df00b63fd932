"""A training of several stages with one resume point: what is finished is read back, what ran goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.types import JsonDict

_RUNNING, _FINISHED = "running/", "finished/"


@dataclass(frozen=True)
class _StagePoint(ResumePoint):
    """Resume point of the stage that runs; it keeps the finished stages beside the running one's state."""

    stage: str = ""
    finished: Mapping[str, torch.Tensor] = field(default_factory=dict)
    histories: Mapping[str, list[JsonDict]] = field(default_factory=dict)

    def save(self, tensors: Mapping[str, torch.Tensor], facts: JsonDict) -> None:
        running = {_RUNNING + name: tensor for name, tensor in tensors.items()}
        super().save({**self.finished, **running}, {"histories": self.histories, "stage": self.stage, "state": facts})

    def load(self) -> tuple[dict[str, torch.Tensor], JsonDict] | None:
        saved = super().load()
        if saved is None or saved[1]["stage"] != self.stage:
            return None
        return _under(_RUNNING, saved[0]), saved[1]["state"]


class StagedTraining:
    """Stages of one training, in order; the same calls after a kill end with the same weights.

    Args:
        resume: the one file they share.
    """

    def __init__(self, resume: ResumePoint) -> None:
        self._resume = resume
        self._finished: dict[str, torch.Tensor] = {}
        self._histories: dict[str, list[dict[str, Any]]] = {}
        saved = resume.load()
        if saved is not None:
            tensors, facts = saved
            self._finished = {name: tensor for name, tensor in tensors.items() if name.startswith(_FINISHED)}
            self._histories = facts["histories"]
        self._order: list[str] = []

    def run(self, stage: str, network: nn.Module, train: Callable[[ResumePoint], pl.DataFrame]) -> None:
        """Leave the trained, frozen weights in `network`: read back where the stage is finished, else by training.

        Args:
            stage: its name, unique in this training.
            network: the module whose state is the stage's result.
            train: trains it, with its state in the resume point given, and returns the history.
        """
        self._order.append(stage)
        prefix = f"{_FINISHED}{stage}/"
        if stage in self._histories:
            network.load_state_dict(_under(prefix, self._finished))
            network.eval().requires_grad_(False)
            return
        point = _StagePoint(self._resume.path, self._resume.key, stage, self._finished, self._histories)
        history = train(point)
        self._finished |= {prefix + name: tensor for name, tensor in network.state_dict().items()}
        self._histories[stage] = history.to_dicts()
        self._resume.save(self._finished, {"histories": self._histories, "stage": None})

    @property
    def history(self) -> pl.DataFrame:
        """One row per validation of each stage run so far: `stage`, then the columns of `maximise`."""
        rows = [{"stage": stage, **row} for stage in self._order for row in self._histories[stage]]
        frame = pl.from_dicts(rows, infer_schema_length=None)
        leading = ("stage", "updates", "steps")
        return frame.select(*leading, *sorted(set(frame.columns) - set(leading)))


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
