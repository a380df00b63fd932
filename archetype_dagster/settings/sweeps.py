"""What a sweep tries: settings of the three phases, and how each trial of them is judged."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from archetype_dagster.settings.phases import CodebookSettings, PlannerSettings, RefinementSettings, SelectionSettings
from archetype_dagster.settings.section import PositiveInt, Section

SweptMetric = Literal["sharpe", "total_return", "calmar", "sortino"]
SweptAccount = Literal["full", "no_refinement"]
Scalar = bool | int | float | str | None

_PHASES: Final[Mapping[str, type[Section]]] = {
    "planner": PlannerSettings,
    "codebook": CodebookSettings,
    "selection": SelectionSettings,
    "refinement": RefinementSettings,
}


class SweptRange(Section):
    """The values that one setting may take."""

    type: Literal["uniform", "log_uniform", "int", "categorical"] = Field(description="How values are drawn.")
    low: float | None = Field(None, allow_inf_nan=False, description="Lowest value of a range.")
    high: float | None = Field(None, allow_inf_nan=False, description="Highest value of a range.")
    step: float | None = Field(None, gt=0, allow_inf_nan=False, description="Distance of the values of a range.")
    choices: tuple[Scalar, ...] | None = Field(None, description="The values of a categorical setting.")
    log: bool = Field(False, description="Draw an int evenly by its logarithm.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.type == "categorical") != (self.choices is not None):
            raise ValueError(f"choices are what categorical needs and no other type takes, got {self!r}")
        if self.choices is None and (self.low is None or self.high is None):
            raise ValueError(f"{self.type} needs low and high, got {self!r}")
        return self

    @property
    def samples(self) -> tuple[Scalar, ...]:
        """The choices, or values that any setting with this range must be able to take."""
        if self.choices is not None:
            return self.choices
        low, high = self.low or 0.0, self.high or 0.0
        # The third one shows that a setting takes no fractions.
        return (int(low), int(high)) if self.type == "int" else (low, high, low + (high - low) / math.pi)


class SweepSettings(Section):
    """A sweep over settings of Phases I to III, judged on the validation split."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] = Field(description="Name of the sweep.")
    space: dict[str, SweptRange] = Field(default_factory=dict, description="Values by dotted setting.")
    alternatives: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict,
        description="Settings that only go together: by a name of yours, named alternatives, each with its settings.",
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Settings of all trials, such as smaller budgets; no part of the best ones."
    )
    trials: PositiveInt = Field(30, description="Trials, those of an earlier attempt included.")
    jobs: PositiveInt = Field(1, description="Worker processes.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of the sampler.")
    metric: SweptMetric = Field("sharpe", description="What a trial is judged by, on the validation split.")
    account: SweptAccount = Field("full", description="The whole policy, or its base actions without refinement.")
    sampler: Literal["tpe", "random"] = Field("tpe", description="How values are proposed.")
    pruner: Literal["none", "median", "hyperband"] = Field(
        "median", description="How trials are stopped early by the validation results of their last phase."
    )

    @model_validator(mode="after")
    def _fields_of_the_phases(self) -> Self:
        if not self.space and not self.alternatives:
            raise ValueError("a sweep needs space or alternatives")
        for field, values in self.space.items():
            for value in values.samples:
                _check(field, value)
        for field, value in self._fixed():
            _check(field, value)
        by_name = {
            name: {field for settings in named.values() for field in settings}
            for name, named in self.alternatives.items()
        }
        for name, fields in by_name.items():
            if not self.alternatives[name]:
                raise ValueError(f"alternatives.{name} must not be empty")
            others = [*self.space, *(field for other in by_name if other != name for field in by_name[other])]
            twice = sorted(fields & set(others)) or ([name] if name in self.space else [])
            if twice:
                raise ValueError(f"{', '.join(twice)} must be swept once, not in alternatives.{name} and elsewhere")
        return self

    def changes(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by dotted name that a trial's parameters stand for."""
        found: dict[str, Any] = {}
        for name, value in params.items():
            found |= self.alternatives[name][value] if name in self.alternatives else {name: value}
        return found

    def _fixed(self) -> Iterator[tuple[str, Any]]:
        yield from self.overrides.items()
        for named in self.alternatives.values():
            for settings in named.values():
                yield from settings.items()


def _check(name: str, value: Any) -> None:
    """Refuse a setting that is not of the phases, and a value that it cannot take (`ValueError`)."""
    section, *path = name.split(".")
    if section not in _PHASES:
        raise ValueError(
            f"{name} cannot be swept: trials may differ in {', '.join(_PHASES)} alone, because another section would "
            "change what they are judged on or by"
        )
    field = _field(name, _PHASES[section], path)
    if field is None:
        return
    rule: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter(rule).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors()[0]['msg']}, got {value!r}") from error


def _field(name: str, section: type[Section], path: list[str]) -> FieldInfo | None:
    """The field at a path below a section; None inside a mapping, whose keys only its reader knows."""
    leaf, *deeper = path or [""]
    if leaf not in section.model_fields:
        raise ValueError(f"{name} is no setting; {section.__name__} has {', '.join(section.model_fields)}")
    field = section.model_fields[leaf]
    inner = _section_of(field.annotation)
    if inner is not None:
        return _field(name, inner, deeper)
    if deeper and get_origin(field.annotation) is not dict:
        raise ValueError(f"{name} is no setting: {name.removesuffix('.' + '.'.join(deeper))} is a value, not a section")
    return None if deeper else field


def _section_of(annotation: Any) -> type[Section] | None:
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, Section)), None)
