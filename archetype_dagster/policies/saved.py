"""A trained policy on disk: weights in safetensors, and JSON that says how to build the network again.

Reading a policy runs nothing that was read: the JSON names algorithms, backbones and classes of fixed lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from archetype_dagster.artifacts import file_hash, read_json, write_json
from archetype_dagster.checkpoints import load_tensors, save_tensors
from archetype_dagster.errors import ArtifactError
from archetype_dagster.policies.spaces import space_from_parts, space_to_parts
from archetype_dagster.types import JsonDict

POLICY_VERSION: Final = 1
POLICY_FILE: Final = "policy.json"
WEIGHTS_FILE: Final = "policy.safetensors"


class Policy(Protocol):
    """Decides from observations; what `load_policy` returns."""

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Actions of one observation or of (N, ...) of them, and the state that a recurrent policy takes back.

        Args:
            observation: in the policy's observation space.
            state: what the last call returned; None at the start.
            episode_start: bool (N,), True where an episode begins, from which on the state is a new one.
            deterministic: the most likely action instead of a drawn one.
        """


@dataclass(frozen=True)
class SavedPolicy:
    """What was written for one policy.

    Attributes:
        spec: how its adapter was made.
        observation_space: what it reads.
        action_space: what it answers.
        weights: its tensors, each stored once.
    """

    spec: JsonDict
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    weights: dict[str, torch.Tensor]

    def restore(self, network: nn.Module) -> None:
        """Put the weights into a network of the same shapes; ArtifactError where they do not fit."""
        places = _shared_names(network)
        try:
            network.load_state_dict({name: self.weights[first] for name, first in places.items()})
        except (KeyError, RuntimeError) as error:
            raise ArtifactError(f"{WEIGHTS_FILE} holds the weights of another network ({error})") from error


def write_policy(
    directory: Path,
    network: nn.Module,
    *,
    bridge: str,
    spec: JsonDict,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
) -> None:
    """Write policy.json and policy.safetensors into a folder, which is made where it is missing.

    Args:
        directory: the folder.
        network: its weights and buffers are stored, those under several names once.
        bridge: which adapter reads it, `sb3` or `cleanrl`.
        spec: how that adapter was made, as JSON.
        observation_space: Box or Discrete.
        action_space: Box or Discrete.
    """
    state = network.state_dict()
    tensors = {f"network/{first}": state[first] for first in set(_shared_names(network).values())}
    facts: JsonDict = {"schema_version": POLICY_VERSION, "bridge": bridge, "spec": spec}
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        facts[name], bounds = space_to_parts(space, name)
        tensors |= bounds
    save_tensors(directory / WEIGHTS_FILE, tensors)
    write_json(directory / POLICY_FILE, {**facts, "weights_sha256": file_hash(directory / WEIGHTS_FILE)})


def read_policy(directory: Path, *, bridge: str) -> SavedPolicy:
    """What `write_policy` wrote for one bridge.

    Raises:
        ArtifactError: a file is missing, damaged, of another version or bridge, or the two do not belong together.
    """
    path = directory / POLICY_FILE
    facts = read_json(path)
    tensors, _ = load_tensors(directory / WEIGHTS_FILE)
    try:
        if facts["schema_version"] != POLICY_VERSION or facts["bridge"] != bridge:
            raise ArtifactError(
                f"{path} is of version {facts['schema_version']} for the bridge {facts['bridge']!r}, "
                f"expected {POLICY_VERSION} for {bridge!r}"
            )
        if facts["weights_sha256"] != file_hash(directory / WEIGHTS_FILE):
            raise ArtifactError(f"{directory / WEIGHTS_FILE} does not have the hash that {POLICY_FILE} states")
        observations, actions = (
            space_from_parts(facts[name], tensors, name) for name in ("observation_space", "action_space")
        )
        weights = {name.removeprefix("network/"): value for name, value in tensors.items() if "network/" in name}
        return SavedPolicy(facts["spec"], observations, actions, weights)
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is not a policy of this library ({error})") from error


def without_pretraining(backbone_kwargs: JsonDict) -> JsonDict:
    """The backbone's arguments but for the file it started from, which the stored weights replace."""
    return {name: value for name, value in backbone_kwargs.items() if name != "pretrained_path"}


def _shared_names(network: nn.Module) -> dict[str, str]:
    """For each name in the state, the first name of the same tensor: policies list a shared part several times."""
    first: dict[tuple[int, torch.Size], str] = {}
    return {
        name: first.setdefault((tensor.data_ptr(), tensor.shape), name) for name, tensor in network.state_dict().items()
    }
