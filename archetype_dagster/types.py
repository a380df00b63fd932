"""Small vocabulary shared by every floor: actions, rules by name, array aliases and the progress protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
StateArray = NDArray[np.float32]
ActionArray = NDArray[np.int8]
IndexArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SHORT: Final = 0
FLAT: Final = 1
LONG: Final = 2
ACTION_NAMES: Final = ("short", "flat", "long")

# Here and not in the settings, which need more at run time than a deployed policy may.
DepthPolicy = Literal["extrapolate", "last_level", "reject"]
HorizonBoundary = Literal["carry", "settle"]
FeatureScale = Literal["relative", "raw"]


class Progress(Protocol):
    """Where long work reports to: a terminal bar, an orchestrator's log, or nothing."""

    def start(self, description: str, total: int) -> None:
        """Open a task of `total` units."""

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Say that `completed` units of the open task are done, with the newest metrics."""

    def finish(self) -> None:
        """Close the open task."""


class NoProgress:
    """A `Progress` that says nothing."""

    def start(self, description: str, total: int) -> None:
        """Ignore the task."""

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        """Ignore the step."""

    def finish(self) -> None:
        """Ignore the end."""


JsonDict = dict[str, Any]
