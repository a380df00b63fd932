"""Training an agent of Stable-Baselines3 so that it can be killed and seeded like everything else here.

The library draws from the process's global streams. Training is therefore cut into blocks, one from each
validation to the next, and the streams are seeded anew at the start of each; a block's draws depend on the run's
seed and the block's number alone, and the streams are put back as they were at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.policies.record import TrainingRecord
from archetype_dagster.policies.sb3_state import pack_agent, restore_agent
from archetype_dagster.seeding import derive_seed
from archetype_dagster.types import JsonDict, Progress

# The library dumps its log every so many episodes; with this it is left for the history to read.
_NO_DUMPS: Final = 2**62


class BlockTask(ABC):
    """What is particular to a training: where its agent acts, how weights are judged, and the best of them.

    Attributes:
        name: names the random streams, the task shown and the errors.
        score: name of the score in history and progress.
    """

    name: str
    score: str

    @property
    @abstractmethod
    def kept(self) -> Mapping[str, nn.Module]:
        """Networks that hold the best weights, to be saved beside the agent's."""

    @abstractmethod
    def judge(self, agent: BaseAlgorithm) -> float:
        """Score of the agent's weights as they are now."""

    @abstractmethod
    def keep(self, agent: BaseAlgorithm) -> None:
        """Keep the weights that were judged last."""

    @abstractmethod
    def is_finite(self, agent: BaseAlgorithm) -> bool:
        """Whether every weight, and every score that the weights give now, is finite."""

    @abstractmethod
    def begin(self, agent: BaseAlgorithm, block: int) -> None:
        """Seed the environment for a block."""

    @abstractmethod
    def metrics(self, agent: BaseAlgorithm) -> dict[str, float | None]:
        """What the history states of a block beside steps and score."""

    @abstractmethod
    def state(self, agent: BaseAlgorithm) -> tuple[dict[str, np.ndarray], JsonDict]:
        """Arrays, named `env/...`, and facts that a block begins with besides the agent's."""

    @abstractmethod
    def restore(self, agent: BaseAlgorithm, arrays: Mapping[str, np.ndarray], facts: JsonDict) -> None:
        """Put back what `state` gave."""


def train_in_blocks(
    task: BlockTask,
    agent: BaseAlgorithm,
    *,
    total_steps: int,
    evaluations: int,
    seed: int,
    resume: ResumePoint,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train `agent` and leave the weights of its best validation with `task`.

    The untrained agent is validated too; equal scores keep the earlier weights. Call it inside `global_streams`.

    Args:
        task: what is particular to this training.
        agent: an untrained agent on the task's environment.
        total_steps: budget; the last rollout may exceed it.
        evaluations: validations spread over it, besides the one before the first step.
        seed: seed of the run.
        resume: where the state is saved after each validation.
        progress: told the steps done after each validation.

    Returns:
        one dictionary per validation: steps, the score and the task's metrics.

    Raises:
        ArchetypeError: the agent's weights are no longer finite.
    """
    agent.set_logger(Logger(folder=None, output_formats=[]))
    blocks = _Blocks(task, total_steps, evaluations, seed, resume, progress)
    blocks.init_callback(agent)
    progress.start(task.name, total_steps)
    begun = blocks.restore()
    left = total_steps - agent.num_timesteps
    if left > 0:
        try:
            agent.learn(left, callback=blocks, log_interval=_NO_DUMPS, reset_num_timesteps=not begun)
        except (ValueError, RuntimeError):
            # Scores that are not finite meet the library's or torch's own sampling before they meet a validation.
            blocks.require_finite()
            raise
        blocks.close_block()
    progress.finish()
    return blocks.record.history


@contextmanager
def global_streams(device: torch.device) -> Iterator[None]:
    """Let the process's global NumPy and torch streams be seeded inside; they are as before afterwards."""
    legacy = np.random.get_state()  # noqa: NPY002 -- the library draws from this stream
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(legacy)  # noqa: NPY002 -- as above


class _Blocks(BaseCallback):
    """Closes a block where a rollout begins and a validation is due: then nothing is half done."""

    def __init__(
        self, task: BlockTask, total_steps: int, evaluations: int, seed: int, resume: ResumePoint, progress: Progress
    ) -> None:
        super().__init__()
        self.task = task
        self.due = [round(total_steps * point / evaluations) for point in range(evaluations)]
        self.total_steps = total_steps
        self.seed = seed
        self.resume = resume
        self.progress = progress
        self.record = TrainingRecord()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        passed = sum(point <= self.model.num_timesteps for point in self.due)
        if passed > self.record.validations:
            # A rollout longer than the distance of two validations leaves one for both.
            self.close_block(passed)
            self._seed()

    def close_block(self, validations: int | None = None) -> None:
        """Validate, keep the better weights, save the state and report."""
        self.require_finite()
        score = self.task.judge(self.model)
        if self.record.improves(score):
            self.task.keep(self.model)
        self.record.validations = len(self.due) + 1 if validations is None else validations
        steps = self.model.num_timesteps
        found = {self.task.score: score, **self.task.metrics(self.model)}
        self.record.history.append({"steps": steps, **found})
        self._save()
        told = {name: value for name, value in found.items() if value is not None}
        self.progress.advance(min(steps, self.total_steps), told)

    def require_finite(self) -> None:
        """Raise `ArchetypeError` where a weight, or a score that the weights give now, is not finite."""
        if not self.task.is_finite(self.model):
            raise ArchetypeError(
                f"{self.task.name} diverged before step {self.model.num_timesteps}: its weights or scores are not "
                "finite; lower the learning rate"
            )

    def restore(self) -> bool:
        """Go on from the saved state; False where there is none."""
        saved = self.resume.load()
        if saved is None:
            return False
        tensors, facts = saved
        self.record = TrainingRecord(facts["validations"], facts["best_score"], facts["history"])
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name.startswith("env/")}
        restore_agent(self.model, tensors, facts, self.task.kept)
        self.task.restore(self.model, arrays, facts)
        self._seed()
        return True

    def _save(self) -> None:
        tensors, counters = pack_agent(self.model, self.task.kept)
        arrays, facts = self.task.state(self.model)
        tensors |= {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        self.resume.save(tensors, {**vars(self.record), **counters, **facts})

    def _seed(self) -> None:
        block, name = self.record.validations, self.task.name
        self.model.action_space.seed(derive_seed(self.seed, name, "actions", block))
        np.random.seed(derive_seed(self.seed, name, "numpy", block) % 2**32)  # noqa: NPY002 -- as above
        torch.manual_seed(derive_seed(self.seed, name, "torch", block))
        self.task.begin(self.model, block)
