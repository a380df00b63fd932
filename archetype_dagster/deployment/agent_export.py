"""Policies of the two bridges as ONNX: one graph from an observation to the most likely action, nothing drawn.

A folder holds agent.onnx, agent.json (spaces, scaling, names and shapes) and checksums.json.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from torch import nn

from archetype_dagster.artifacts import write_json
from archetype_dagster.deployment.bundle import seal_bundle
from archetype_dagster.deployment.graphs import OPSET, Graph, write_graph
from archetype_dagster.deployment.onnx_agent import AGENT_FILE, AGENT_VERSION, GRAPH_FILE, OnnxAgent
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.policies import CleanRLAdapter, GreedyPolicy
from archetype_dagster.types import JsonDict, StateArray

TOLERANCE: Final = 1e-5
# With an example batch of 1 the exporter would freeze the batch size.
_EXAMPLE_BATCH: Final = 3
Agent = BaseAlgorithm | BasePolicy | CleanRLAdapter


class AgentGraph(nn.Module):
    """Observation as the environment shows it -> action; the scaling, where there is one, inside.

    Args:
        agent: an agent of Stable-Baselines3 or its policy, or a `CleanRLAdapter`.
        scaler: of the F numbers of a bar; None where observations are not scaled.

    Raises:
        SettingsError: a policy with a state of its own, see `GreedyPolicy`.
    """

    def __init__(self, agent: Agent, scaler: FeatureScaler | None = None) -> None:
        super().__init__()
        self.greedy = GreedyPolicy(_network(agent)).cpu()
        self.clip_sigma = None if scaler is None else scaler.clip_sigma
        if scaler is not None:
            self.register_buffer("mean", torch.from_numpy(scaler.mean.copy()))
            self.register_buffer("std", torch.from_numpy(scaler.std.copy()))
        self.mean: torch.Tensor
        self.std: torch.Tensor

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """float32 (B, ...) -> int64 (B,) of a Discrete space, or float32 (B, ...) of a Box."""
        if self.clip_sigma is not None:
            bars = observation.reshape(observation.shape[0], -1, len(self.mean)).double()
            bars = ((bars - self.mean) / self.std).clamp(-self.clip_sigma, self.clip_sigma)
            observation = bars.float().reshape(observation.shape)
        action: torch.Tensor = self.greedy(observation)
        return action


def export_agent(agent: Agent, directory: Path, *, scaler: FeatureScaler | None = None) -> JsonDict:
    """Write the folder, which is made where it is missing, and return agent.json.

    Args:
        agent: see `AgentGraph`; PPO, SAC, TD3 or DQN of Stable-Baselines3, or a `CleanRLAdapter`, over any backbone.
        directory: the folder.
        scaler: what the agent's observations were scaled with.

    Raises:
        SettingsError: a policy with a state of its own.
        ArtifactError: the exporter froze the batch size or renamed an input or output.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shape = tuple(agent.observation_space.shape or ())
    example = {"observation": torch.zeros(_EXAMPLE_BATCH, *shape)}
    graph = write_graph(directory, Graph(GRAPH_FILE, AgentGraph(agent, scaler), example, ("action",)))
    manifest: JsonDict = {
        "schema_version": AGENT_VERSION,
        "policy": type(_network(agent)).__name__,
        "observation": {"shape": list(shape), "dtype": "float32"},
        "action_space": _action_space(agent.action_space),
        "normaliser": None
        if scaler is None
        else {
            "rule": "inside the graph: clip((x - mean) / std, -clip_sigma, clip_sigma) of every bar's numbers",
            "mean": scaler.mean.tolist(),
            "std": scaler.std.tolist(),
            "clip_sigma": scaler.clip_sigma,
        },
        "graph": graph,
        "opset": OPSET,
        "parity_tolerance": TOLERANCE,
    }
    write_json(directory / AGENT_FILE, manifest)
    seal_bundle(directory, (AGENT_FILE, GRAPH_FILE))
    return manifest


@dataclass(frozen=True)
class AgentParity:
    """How far the exported agent's actions are from the trained one's.

    Attributes:
        observations: compared.
        max_abs_difference: largest difference of an action's number; of a discrete action 0 or 1.
        repeats: whether a second run gave the same bits.
    """

    observations: int
    max_abs_difference: float
    repeats: bool

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return asdict(self)


def check_agent(expected: np.ndarray, exported: OnnxAgent, observations: StateArray) -> AgentParity:
    """Hold an exported agent against the actions of the trained one.

    Args:
        expected: actions (N, ...) of the trained agent.
        exported: the agent read back.
        observations: float32 (N, ...), as the environment shows them.

    Raises:
        ArtifactError: a difference above the tolerance, or a second run with other bits.
    """
    found = exported.predict(observations)
    differences = np.abs(found.astype(np.float64) - expected)
    largest = float(differences.max()) if np.issubdtype(found.dtype, np.floating) else float(differences.any())
    parity = AgentParity(len(observations), largest, bool(np.array_equal(found, exported.predict(observations))))
    if parity.max_abs_difference > TOLERANCE or not parity.repeats:
        raise ArtifactError(f"the exported agent must decide as the trained one within {TOLERANCE}, got {parity}")
    return parity


def _network(agent: Agent) -> nn.Module:
    if isinstance(agent, CleanRLAdapter):
        return agent.network
    return agent.policy if isinstance(agent, BaseAlgorithm) else agent


def _action_space(space: spaces.Space[Any]) -> JsonDict:
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.Box):
        return {"kind": "Box", "shape": list(space.shape), "low": space.low.tolist(), "high": space.high.tolist()}
    raise ArtifactError(f"an exported agent answers Box or Discrete spaces, got {space}")
