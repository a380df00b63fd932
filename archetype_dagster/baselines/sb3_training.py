"""Training an agent of Stable-Baselines3 so that it can be killed and seeded like everything else here.

The library draws from the process's global streams. Training is therefore cut into blocks, one from each
validation to the next, and the streams are seeded anew at the start of each; a block's draws depend on the run's
seed and the block's number alone, and the streams are put back as they were at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from archetype_dagster.baselines.networks import PolicyNetwork
from archetype_dagster.baselines.sb3_agents import PerturbedTargetDQN, greedy_half
from archetype_dagster.checkpoints import ResumePoint, pack_training_state, unpack_training_state
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.seeding import derive_seed, numpy_generator
from archetype_dagster.types import JsonDict, Progress

_REPLAY_ARRAYS: Final = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
# The library dumps its log every so many episodes; with this it is left for the history to read.
_NO_DUMPS: Final = 2**62
VALIDATION_SCORE: Final = "validation_return"


@dataclass
class _Record:
    """What a training has found so far."""

    validations: int = 0
    best_score: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)


def train_agent(
    name: str,
    agent: BaseAlgorithm,
    env: TradingVecEnv,
    best: PolicyNetwork,
    validate: Callable[[PolicyNetwork], float],
    *,
    total_steps: int,
    evaluations: int,
    seed: int,
    resume: ResumePoint,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train `agent` and leave the greedy weights of its best validation in `best`.

    The untrained agent is validated too; equal scores keep the earlier weights. Call it inside `global_streams`.

    Args:
        name: baseline, which names the random streams and the task shown.
        agent: an untrained agent on `env`.
        env: its environment.
        best: a network of the agent's shapes.
        validate: score of a network's greedy actions.
        total_steps: budget; the last rollout may exceed it.
        evaluations: validations spread over it, besides the one before the first step.
        seed: seed of the run.
        resume: where the state is saved after each validation.
        progress: told the steps done after each validation.

    Returns:
        one dictionary per validation: steps, validation_return, loss.

    Raises:
        ArchetypeError: the agent's weights are no longer finite.
    """
    agent.set_logger(Logger(folder=None, output_formats=[]))
    blocks = _Blocks(name, env, best, validate, total_steps, evaluations, seed, resume, progress)
    blocks.init_callback(agent)
    progress.start(name, total_steps)
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
        self,
        name: str,
        env: TradingVecEnv,
        best: PolicyNetwork,
        validate: Callable[[PolicyNetwork], float],
        total_steps: int,
        evaluations: int,
        seed: int,
        resume: ResumePoint,
        progress: Progress,
    ) -> None:
        super().__init__()
        self.name = name
        self.env = env
        self.best = best
        self.current = PolicyNetwork(**best.shape).to(next(best.parameters()).device).eval()
        self.validate = validate
        self.due = [round(total_steps * point / evaluations) for point in range(evaluations)]
        self.total_steps = total_steps
        self.seed = seed
        self.resume = resume
        self.progress = progress
        self.record = _Record()

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
        score = self.validate(self.current)
        if score > self.record.best_score:
            self.record.best_score = score
            self.best.load_state_dict(self.current.state_dict())
        self.record.validations = len(self.due) + 1 if validations is None else validations
        steps = self.model.num_timesteps
        loss = self.model.logger.name_to_value.get("train/loss")
        loss = None if loss is None else float(loss)
        self.record.history.append({"steps": steps, VALIDATION_SCORE: score, "loss": loss})
        self._save()
        metrics = {VALIDATION_SCORE: score} if loss is None else {VALIDATION_SCORE: score, "loss": loss}
        self.progress.advance(min(steps, self.total_steps), metrics)

    def require_finite(self) -> None:
        """Raise `ArchetypeError` where a weight, or a score that the weights give now, is not finite."""
        greedy_half(self.model, self.current)
        market = torch.as_tensor(self.env.observe()[:, :-3], device=self.model.device)
        if self.current.lookback_bars is not None:
            market = market.reshape(len(market), self.current.lookback_bars, -1)
        with torch.no_grad():
            scores = self.current(market)
        if not all(torch.isfinite(values).all() for values in (*self.model.policy.parameters(), scores)):
            raise ArchetypeError(
                f"{self.name} diverged before step {self.model.num_timesteps}: its weights or scores are not finite; "
                "lower the learning rate"
            )

    def restore(self) -> bool:
        """Go on from the saved state; False where there is none."""
        saved = self.resume.load()
        if saved is None:
            return False
        tensors, facts = saved
        modules = {"policy": self.model.policy, "best": self.best}
        arrays = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith(("env/", "replay/"))}
        unpack_training_state(tensors, modules, self.model.policy.optimizer)
        self.record = _Record(facts["validations"], facts["best_score"], facts["history"])
        self.env.core.restore({name.removeprefix("env/"): array for name, array in arrays.items()})
        self.model.num_timesteps = facts["steps"]
        self.model._last_obs = self.env.observe()
        self.model._last_episode_starts = arrays["env/starts"]
        _restore_dqn(self.model, arrays, facts)
        self._seed()
        return True

    def _save(self) -> None:
        arrays = {f"env/{name}": array for name, array in self.env.core.state().items()}
        arrays["env/starts"] = np.asarray(self.model._last_episode_starts)
        facts: JsonDict = {**vars(self.record), "steps": self.model.num_timesteps}
        _save_dqn(self.model, arrays, facts)
        modules = {"policy": self.model.policy, "best": self.best}
        # The library lists a shared extractor under several names, and safetensors refuses shared memory.
        packed = {
            name: tensor.clone() for name, tensor in pack_training_state(modules, self.model.policy.optimizer).items()
        }
        packed |= {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        self.resume.save(packed, facts)

    def _seed(self) -> None:
        block = self.record.validations
        self.env.core.generator = numpy_generator(self.seed, self.name, "starts", block)
        self.model.action_space.seed(derive_seed(self.seed, self.name, "actions", block))
        np.random.seed(derive_seed(self.seed, self.name, "numpy", block) % 2**32)  # noqa: NPY002 -- as above
        torch.manual_seed(derive_seed(self.seed, self.name, "torch", block))


def _save_dqn(agent: BaseAlgorithm, arrays: dict[str, Any], facts: JsonDict) -> None:
    if not isinstance(agent, DQN):
        return
    replay = _replay(agent)
    filled = replay.size()
    arrays |= {f"replay/{name}": getattr(replay, name)[:filled] for name in _REPLAY_ARRAYS}
    facts |= {"calls": agent._n_calls, "exploration": agent.exploration_rate, "position": replay.pos}
    facts["full"] = replay.full
    if isinstance(agent, PerturbedTargetDQN):
        facts |= {"copies": agent.copies, "next_copy": agent.next_copy}


def _restore_dqn(agent: BaseAlgorithm, arrays: dict[str, Any], facts: JsonDict) -> None:
    if not isinstance(agent, DQN):
        return
    replay = _replay(agent)
    for name in _REPLAY_ARRAYS:
        saved = arrays[f"replay/{name}"]
        getattr(replay, name)[: len(saved)] = saved
    replay.pos, replay.full = facts["position"], facts["full"]
    agent._n_calls, agent.exploration_rate = facts["calls"], facts["exploration"]
    if isinstance(agent, PerturbedTargetDQN):
        agent.copies, agent.next_copy = facts["copies"], facts["next_copy"]


def _replay(agent: DQN) -> ReplayBuffer:
    if agent.replay_buffer is None:
        raise ArchetypeError("a DQN agent has no replay buffer before it is set up")
    return agent.replay_buffer
