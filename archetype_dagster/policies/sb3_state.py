"""All that an agent of Stable-Baselines3 has learnt, as tensors and facts, so that its training can go on later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import nn

from archetype_dagster.checkpoints import pack_training_state, unpack_training_state
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.types import JsonDict

_REPLAY_ARRAYS: Final = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_ENTROPY: Final = "entropy/logarithm"


def pack_agent(agent: BaseAlgorithm, beside: Mapping[str, nn.Module]) -> tuple[dict[str, torch.Tensor], JsonDict]:
    """Weights, optimisers, replay buffer and counters of a PPO, DQN or SAC, and the networks kept `beside` it."""
    (_, first), *others = _optimizers(agent).items()
    packed = pack_training_state({"policy": agent.policy, **beside}, first)
    for name, optimizer in others:
        packed |= {f"{name}/{key}": tensor for key, tensor in pack_training_state({}, optimizer).items()}
    if isinstance(agent, SAC) and agent.log_ent_coef is not None:
        packed[_ENTROPY] = agent.log_ent_coef.detach()
    # The library lists a shared extractor under several names, and safetensors refuses shared memory.
    packed = {name: tensor.clone() for name, tensor in packed.items()}
    facts: JsonDict = {"steps": agent.num_timesteps}
    if isinstance(agent, OffPolicyAlgorithm):
        replay = _replay(agent)
        filled = replay.size()
        for name in _REPLAY_ARRAYS:
            packed[f"replay/{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(replay, name)[:filled]))
        facts |= {"position": replay.pos, "full": replay.full}
    if isinstance(agent, DQN):
        facts |= {"calls": agent._n_calls, "exploration": agent.exploration_rate}
    return packed, facts


def restore_agent(
    agent: BaseAlgorithm, tensors: Mapping[str, torch.Tensor], facts: JsonDict, beside: Mapping[str, nn.Module]
) -> None:
    """Put back what `pack_agent` packed; agent and networks must be built as those were."""
    (_, first), *others = _optimizers(agent).items()
    unpack_training_state(tensors, {"policy": agent.policy, **beside}, first)
    for name, optimizer in others:
        prefix = f"{name}/"
        part = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        unpack_training_state(part, {}, optimizer)
    if isinstance(agent, SAC) and agent.log_ent_coef is not None:
        agent.log_ent_coef.data.copy_(tensors[_ENTROPY])
    agent.num_timesteps = facts["steps"]
    if isinstance(agent, OffPolicyAlgorithm):
        replay = _replay(agent)
        for name in _REPLAY_ARRAYS:
            saved = tensors[f"replay/{name}"].numpy()
            getattr(replay, name)[: len(saved)] = saved
        replay.pos, replay.full = facts["position"], facts["full"]
    if isinstance(agent, DQN):
        agent._n_calls, agent.exploration_rate = facts["calls"], facts["exploration"]


def _optimizers(agent: BaseAlgorithm) -> dict[str, torch.optim.Optimizer]:
    """What moves the agent's weights; the first one's moments are packed under no name of its own."""
    if not isinstance(agent, SAC):
        return {"policy": agent.policy.optimizer}
    found = {"actor": agent.actor.optimizer, "critic": agent.critic.optimizer, "entropy": agent.ent_coef_optimizer}
    return {name: optimizer for name, optimizer in found.items() if optimizer is not None}


def _replay(agent: OffPolicyAlgorithm) -> ReplayBuffer:
    if agent.replay_buffer is None:
        raise ArchetypeError(f"a {type(agent).__name__} has no replay buffer before it is set up")
    return agent.replay_buffer
