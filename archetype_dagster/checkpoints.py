"""Weights on disk, and the resume point from which a killed training goes on.

Everything is safetensors: opening a file can never execute code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize_tensors

from archetype_dagster.artifacts import write_bytes_atomically
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], facts: JsonDict | None = None) -> None:
    """Write tensors, and JSON facts in the header, to one safetensors file atomically."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    metadata = {"facts": json.dumps(facts or {}, sort_keys=True)}
    write_bytes_atomically(path, serialize_tensors(contiguous, metadata=metadata))


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], JsonDict]:
    """Tensors and facts of a file written by `save_tensors`.

    Raises:
        ArtifactError: missing, truncated or not a safetensors file; a pickle is never opened.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            metadata = stream.metadata() or {}
        facts = json.loads(metadata["facts"])
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ArtifactError(f"{path} is truncated or not a checkpoint of this library ({error})") from error
    return tensors, facts


@dataclass(frozen=True)
class ResumePoint:
    """The one file a training loop keeps so that it can go on after a kill.

    Attributes:
        path: where the state lies; None switches resuming off.
        key: stage key; a state saved under another key is ignored and overwritten.
    """

    path: Path | None
    key: str

    def save(self, tensors: Mapping[str, torch.Tensor], facts: JsonDict) -> None:
        """Replace the saved state."""
        if self.path is not None:
            save_tensors(self.path, tensors, {**facts, "key": self.key})

    def load(self) -> tuple[dict[str, torch.Tensor], JsonDict] | None:
        """The saved state, or None where there is none for this key."""
        if self.path is None or not self.path.exists():
            return None
        tensors, facts = load_tensors(self.path)
        return (tensors, facts) if facts.get("key") == self.key else None

    def clear(self) -> None:
        """Remove the saved state once the artifact is published."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def pack_training_state(
    modules: Mapping[str, torch.nn.Module], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Weights, buffers and optimiser moments as one flat dictionary of tensors."""
    packed = {
        f"module/{name}/{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }
    for index, moments in optimizer.state_dict()["state"].items():
        for key, value in moments.items():
            packed[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    return packed


def unpack_training_state(
    tensors: Mapping[str, torch.Tensor],
    modules: Mapping[str, torch.nn.Module],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Put back what `pack_training_state` packed; the modules must have the same shapes."""
    for name, module in modules.items():
        prefix = f"module/{name}/"
        module.load_state_dict({key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)})
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimizer/"):
            _, index, moment = key.split("/")
            state.setdefault(int(index), {})[moment] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
