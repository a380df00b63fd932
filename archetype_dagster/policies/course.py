"""The course of a training that goes update by update: history, judgements, the best weights and where to go on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint, pack_training_state, unpack_training_state
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.policies.record import TrainingRecord
from archetype_dagster.types import Progress


class Course:
    """What happens between the updates of a network.

    Args:
        network: in training.
        optimizer: of its weights.
        judge: score of the network's weights as they are; None leaves it with the last ones.
        due: updates before which it is judged; after the last one it is in any case.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        judge: Callable[[], float] | None,
        due: Collection[int],
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.judge = judge
        self.due = due
        self.best = None if judge is None else copy.deepcopy(network)
        self.record = TrainingRecord()
        self.resume = ResumePoint(None, "")

    def begin(self, resume: ResumePoint, progress: Progress) -> int:
        """Go on from a saved state, or judge the untrained network: the updates done so far."""
        self.resume = resume
        saved = resume.load()
        if saved is None:
            self.close(0, {"steps": 0}, progress)
            return 0
        tensors, facts = saved
        unpack_training_state(tensors, self._modules, self.optimizer)
        self.record = TrainingRecord(facts["validations"], facts["best_score"], facts["history"])
        return int(facts["updates"])

    def closes(self, update: int) -> bool:
        """Whether the weights are judged before this update."""
        return self.judge is not None and update in self.due

    def close(self, update: int, row: dict[str, Any], progress: Progress, *, last: bool = False) -> None:
        """Note a row after so many updates; judge, keep and save where that is due.

        Raises:
            ArchetypeError: a weight is not finite.
        """
        if not all(bool(torch.isfinite(weight).all()) for weight in self.network.parameters()):
            raise ArchetypeError(
                f"training diverged before step {row['steps']}: its weights are not finite; lower the learning rate"
            )
        judged = self.judge is not None and (last or update in self.due)
        if judged and self.judge is not None:
            row = {**row, "score": self.judge()}
            self.record.validations += 1
            if self.record.improves(row["score"]) and self.best is not None:
                self.best.load_state_dict(self.network.state_dict())
        if update or judged:
            self.record.history.append(row)
            progress.advance(row["steps"], {name: value for name, value in row.items() if name != "steps"})
        if judged:
            state = pack_training_state(self._modules, self.optimizer)
            self.resume.save(state, {**vars(self.record), "updates": update})

    def finish(self) -> None:
        """Leave the best weights, where they were judged, in the network."""
        if self.best is not None:
            self.network.load_state_dict(self.best.state_dict())
        self.network.eval()

    @property
    def _modules(self) -> dict[str, nn.Module]:
        return {"network": self.network} if self.best is None else {"network": self.network, "best": self.best}
