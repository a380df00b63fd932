"""An exported agent opened with onnxruntime: observation in, action out, without torch or Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from archetype_dagster.artifacts import json_hash
from archetype_dagster.deployment.bundle import verify_files
from archetype_dagster.deployment.manifest_fields import ManifestFields
from archetype_dagster.deployment.sessions import CPU, open_session, require_providers
from archetype_dagster.types import JsonDict, StateArray

AGENT_VERSION: Final = 1
AGENT_FILE: Final = "agent.json"
GRAPH_FILE: Final = "agent.onnx"
_AGAIN: Final = "export the agent again"


@dataclass(frozen=True)
class OnnxAgent:
    """A policy that was exported by `export_agent`.

    Attributes:
        manifest: agent.json: spaces, scaling, names and shapes.
        session: of agent.onnx.
    """

    manifest: JsonDict
    session: onnxruntime.InferenceSession

    @classmethod
    def load(cls, directory: Path, providers: Sequence[str] = (CPU,)) -> Self:
        """Open a folder after comparing every file with its checksum.

        Raises:
            ArtifactError: a file is missing, changed, not listed or of another version; a field of the manifest that
                is missing or of another kind; or a graph that is not what the manifest states.
            ValueError: a provider that this onnxruntime does not have.
        """
        require_providers(providers)
        verify_files(directory, required=(AGENT_FILE, GRAPH_FILE), remedy=_AGAIN)
        manifest = ManifestFields.read(directory / AGENT_FILE, remedy=_AGAIN)
        manifest.version(AGENT_VERSION)
        graph = _interface(manifest)
        return cls(manifest.values, open_session(directory / GRAPH_FILE, graph, providers))

    def predict(self, observations: StateArray) -> NDArray[Any]:
        """Most likely actions for observations float32 (N, ...) as the environment shows them.

        Returns:
            float32 (N, ...) of a Box, int64 (N,) of a Discrete space.

        Raises:
            ValueError: observations of another shape.
        """
        shape = tuple(self.manifest["observation"]["shape"])
        if observations.shape[1:] != shape:
            raise ValueError(f"observations must be (N, *{shape}), got shape {observations.shape}")
        actions: NDArray[Any] = self.session.run(None, {"observation": np.asarray(observations, dtype=np.float32)})[0]
        return actions


def _interface(manifest: ManifestFields) -> JsonDict:
    """The graph's inputs and outputs, which must be those that the manifest's spaces call for."""
    observation, actions = manifest.table("observation"), manifest.table("action_space")
    observation.equal("dtype", "float32")
    seen = {"name": "observation", "dtype": "float32", "shape": ["batch", *observation.sizes("shape")]}
    if actions.choice("kind", ("Box", "Discrete")) == "Box":
        made = {"name": "action", "dtype": "float32", "shape": ["batch", *actions.sizes("shape")]}
    else:
        made = {"name": "action", "dtype": "int64", "shape": ["batch"]}
    graph = manifest.table("graph")
    for side, expected in (("inputs", [seen]), ("outputs", [made])):
        found = graph.value(side)
        # Of the JSON texts, because to Python 1 and True are equal.
        if json_hash(found) != json_hash(expected):
            raise graph.refusal(side, f"are {found}, the spaces call for {expected}")
    return graph.values
