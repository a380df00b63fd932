"""What a sweep may vary: one definition a parameter, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from archetype_dagster.types import JsonDict

if TYPE_CHECKING:
    from optuna import Trial

Choice = str | int | float | bool | None

# Short and long names of one kind each.
_KINDS: Final = {
    "uniform": "float",
    "log_uniform": "float",
    "discrete": "float",
    "int": "int",
    "int_uniform": "int",
    "categorical": "choice",
    "choice": "choice",
}


@dataclass(frozen=True)
class SearchSpaceDef:
    """The values that one parameter may take.

    Attributes:
        param_type: `uniform`, `log_uniform` (uniform in the logarithm), `discrete` (multiples of `step` from `low`
            on), `int` or `int_uniform` (whole numbers), `categorical` or `choice` (one of `choices`).
        low: least value, included.
        high: greatest value, included.
        step: distance of neighbouring values; needed by `discrete`, 1 for whole numbers where none is given.
        choices: of `categorical` and `choice`: text, numbers, truth values or None, each once; kept as a tuple.
        log: draw uniformly in the logarithm; always so for `log_uniform`.

    Raises:
        ValueError: an unknown type, a bound that is missing, no number or not below the other, a logarithm of what
            is not positive, a step that does not lead from `low` to `high`, or choices that are none, few or double.
    """

    param_type: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: Sequence[Choice] | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if self.param_type not in _KINDS:
            raise ValueError(f"param_type must be one of {', '.join(_KINDS)}, got param_type={self.param_type!r}")
        if self.param_type == "log_uniform":
            object.__setattr__(self, "log", True)
        if self._kind == "choice":
            self._check_choices()
        else:
            self._check_range()

    @property
    def _kind(self) -> str:
        return _KINDS[self.param_type]

    def suggest(self, trial: Trial, name: str) -> Any:
        """The value that `trial` takes for the parameter called `name`."""
        if self.choices is not None:
            return trial.suggest_categorical(name, self.choices)
        low, high = self._bounds
        if self._kind == "int":
            return trial.suggest_int(name, int(low), int(high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, low, high, step=self.step, log=self.log)

    def as_json(self) -> JsonDict:
        """The definition as plain values, the same for the same set of values."""
        if self.choices is not None:
            return {"kind": self._kind, "choices": list(self.choices)}
        low, high = self._bounds
        return {"kind": self._kind, "low": low, "high": high, "step": self.step, "log": self.log}

    @property
    def _bounds(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            raise ValueError(f"{self.param_type} needs low and high, got low={self.low} and high={self.high}")
        return self.low, self.high

    def _check_choices(self) -> None:
        if self.low is not None or self.high is not None or self.step is not None or self.log:
            raise ValueError(f"{self.param_type} takes choices alone, got {self}")
        if self.choices is None or isinstance(self.choices, str) or not len(self.choices):
            raise ValueError(f"choices must be a list with at least one value, got choices={self.choices!r}")
        object.__setattr__(self, "choices", tuple(self.choices))
        for place, choice in enumerate(self.choices):
            if not isinstance(choice, str | int | float | bool | None):
                raise ValueError(f"choices must be text, numbers, truth values or None, got {choice!r}")
            if isinstance(choice, float) and not math.isfinite(choice):
                raise ValueError(f"choices must be finite, got {choice}")
            if choice in self.choices[:place]:
                raise ValueError(f"choices must differ, got {choice!r} twice in choices={self.choices}")

    def _check_range(self) -> None:
        if self.choices is not None:
            raise ValueError(f"{self.param_type} takes low and high, not choices, got choices={self.choices!r}")
        low, high = self._bounds
        for name, value in (("low", low), ("high", high), ("step", self.step)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{name} must be a number, got {name}={value!r}")
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {name}={value}")
            if value is not None and self._kind == "int" and value != int(value):
                raise ValueError(f"{name} of {self.param_type} must be a whole number, got {name}={value}")
        if low >= high:
            raise ValueError(f"low must be below high, got low={low} and high={high}")
        if self.log and low <= 0:
            raise ValueError(f"low must be positive on a logarithmic scale, got low={low}")
        self._check_step(low, high)

    def _check_step(self, low: float, high: float) -> None:
        if self.step is None:
            if self.param_type == "discrete":
                raise ValueError("discrete needs a step, got step=None")
            return
        if self.step <= 0:
            raise ValueError(f"step must be positive, got step={self.step}")
        if self.log and not (self._kind == "int" and self.step == 1):
            raise ValueError(f"a logarithmic scale has no step, got step={self.step}")
        # As decimals, because 0.3 is no multiple of 0.1 in binary.
        if (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(self.step)):
            raise ValueError(f"high - low must be a multiple of step, got {self}")


SearchSpace = Mapping[str, SearchSpaceDef]

DEFAULT_SPACE: Final[SearchSpace] = MappingProxyType(
    {
        "lr": SearchSpaceDef("log_uniform", 1e-5, 1e-2),
        "gamma": SearchSpaceDef("uniform", 0.8, 0.999),
        "clip_param": SearchSpaceDef("uniform", 0.1, 0.4),
        "entropy_coeff": SearchSpaceDef("log_uniform", 1e-4, 1e-1),
    }
)
