"""What every group of settings is, and the numbers that fields hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archetype_dagster.errors import SettingsError

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys.

    Attributes:
        locations: fields that the hash leaves out: where files lie, how they are fetched, what is tried beside the run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    locations: ClassVar[dict[str, Any]] = {}

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON of this section: equal settings, equal hash.

        Where source files lie and how they are fetched does not count; what is in them is hashed
        with the artifacts. Nor does a sweep's search: each of its trials has settings of its own.
        """
        values = self.model_dump(mode="json", exclude=self.locations)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def checked(cls, tree: dict[str, Any], changes: Mapping[str, Any], origin: str) -> Self:
        """This section from a tree of values, with other values by dotted key put into it.

        Args:
            tree: values by field, nested as the sections are; changed in place.
            changes: e.g. `{"planner.horizon_bars": 36}`.
            origin: what messages say the values came from.

        Raises:
            SettingsError: unknown key or value out of range; names the first one.
        """
        for key, value in changes.items():
            _set_dotted(tree, key, value)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "settings"
            raise SettingsError(f"{origin}: {place}: {first['msg']}, got {first['input']!r}") from error


def _set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise SettingsError(f"setting {key!r}: {section!r} is a value, not a section")
        node = child
    node[leaf] = value
