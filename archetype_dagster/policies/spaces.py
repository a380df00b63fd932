"""Gymnasium spaces as JSON and tensors, so that a saved policy knows what it reads and what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.types import JsonDict


def space_to_parts(space: spaces.Space[Any], name: str) -> tuple[JsonDict, dict[str, torch.Tensor]]:
    """A Box or Discrete space as facts and as tensors, which hold infinite bounds.

    Raises:
        SettingsError: another kind of space.
    """
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}, {}
    if isinstance(space, spaces.Box):
        facts = {"kind": "Box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}
        bounds = {"low": space.low, "high": space.high}
        return facts, {f"{name}/{side}": torch.from_numpy(bound.copy()) for side, bound in bounds.items()}
    raise SettingsError(f"a saved policy reads and answers Box or Discrete spaces, got {space}")


def space_from_parts(facts: JsonDict, tensors: Mapping[str, torch.Tensor], name: str) -> spaces.Space[Any]:
    """The space that `space_to_parts` wrote; ArtifactError where the facts are of another kind."""
    if facts["kind"] == "Discrete":
        return spaces.Discrete(facts["n"], start=facts["start"])
    if facts["kind"] == "Box":
        low, high = (tensors[f"{name}/{side}"].numpy() for side in ("low", "high"))
        return spaces.Box(low, high, tuple(facts["shape"]), np.dtype(facts["dtype"]).type)
    raise ArtifactError(f"unknown kind of space {facts['kind']!r}")
