"""An exported agent opened with onnxruntime: observation in, action out, without torch or Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from archetype_dagster.artifacts import read_json
from archetype_dagster.deployment.bundle import verify_files
from archetype_dagster.deployment.sessions import CPU, open_session, require_providers
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict, StateArray

AGENT_VERSION: Final = 1
AGENT_FILE: Final = "agent.json"
GRAPH_FILE: Final = "agent.onnx"


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
            ArtifactError: a file is missing, changed, not listed or of another version.
            ValueError: a provider that this onnxruntime does not have.
        """
        require_providers(providers)
        verify_files(directory, required=(AGENT_FILE, GRAPH_FILE))
        manifest = read_json(directory / AGENT_FILE)
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        if version != AGENT_VERSION:
            raise ArtifactError(
                f"{directory / AGENT_FILE} has schema version {version}, this version reads {AGENT_VERSION}; "
                "export the agent again"
            )
        return cls(manifest, open_session(directory / GRAPH_FILE, manifest["graph"], providers))

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
