"""Reading a manifest field by field: whatever is missing or of another kind is one error with file, field and rule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from archetype_dagster.artifacts import json_hash, read_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

# Lengths of time and arrays are made of them.
_MOST: Final = 2**31 - 1


@dataclass(frozen=True)
class ManifestFields:
    """A JSON object of a manifest.

    Every method raises `ArtifactError` where the field is missing or breaks the rule. Booleans are not numbers.

    Attributes:
        path: the file.
        values: the object.
        remedy: what to do where a field is wrong.
        place: dotted names that lead to the object in the file, empty for the whole.
    """

    path: Path
    values: JsonDict
    remedy: str
    place: str = ""

    @classmethod
    def read(cls, path: Path, *, remedy: str) -> Self:
        """The object that a file holds; `ArtifactError` where it is missing, damaged or holds something else."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise ArtifactError(f"{path} must hold an object of named fields, got {type(values).__name__}; {remedy}")
        return cls(path, values, remedy)

    def refusal(self, name: str, rule: str) -> ArtifactError:
        """The error of a field that breaks a rule."""
        return ArtifactError(f"{self.path}: {self._named(name)} {rule}; {self.remedy}")

    def value(self, name: str) -> Any:
        """A field of any kind."""
        if name not in self.values:
            raise self.refusal(name, "is missing")
        return self.values[name]

    def version(self, reads: int) -> int:
        """`schema_version`, which must be the one that is read; a newer one asks for an upgrade."""
        found = self.values.get("schema_version")
        if type(found) is int and found == reads:
            return found
        newer = type(found) is int and found > reads
        remedy = "upgrade archetype-dagster" if newer else self.remedy
        raise ArtifactError(f"{self.path} has schema version {found}, this version reads {reads}; {remedy}")

    def equal(self, name: str, expected: Any) -> None:
        """A field that must be what this version computes with."""
        found = self.value(name)
        # Of the JSON texts, because to Python 1, 1.0 and True are equal.
        if json_hash(found) != json_hash(expected):
            raise self.refusal(name, f"is {_short(found)}, this version computes with {_short(expected)}")

    def choice(self, name: str, allowed: Sequence[str | None]) -> str | None:
        """One of some words."""
        found = self.value(name)
        if found not in allowed:
            raise self.refusal(name, f"must be one of {tuple(allowed)}, got {_short(found)}")
        chosen: str | None = found
        return chosen

    def text(self, name: str) -> str:
        """A name."""
        found = self.value(name)
        if not isinstance(found, str):
            raise self.refusal(name, f"must be a name, got {_short(found)}")
        return found

    def integer(self, name: str, *, least: int) -> int:
        """A whole number."""
        found = self.value(name)
        if type(found) is not int or found < least:
            raise self.refusal(name, f"must be an integer of at least {least}, got {_short(found)}")
        if found > _MOST:
            raise self.refusal(name, f"must be an integer of at most {_MOST}, got {_short(found)}")
        return found

    def number(self, name: str) -> float:
        """A finite number."""
        found = self.value(name)
        if not _is_number(found):
            raise self.refusal(name, f"must be a finite number, got {_short(found)}")
        return float(found)

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers."""
        found = self.items(name)
        for place, one in enumerate(found):
            if not _is_number(one):
                raise self.refusal(f"{name}[{place}]", f"must be a finite number, got {_short(one)}")
        return [float(one) for one in found]

    def sizes(self, name: str) -> list[int]:
        """A list of whole numbers of at least 1, such as a shape."""
        found = self.items(name)
        for place, one in enumerate(found):
            if type(one) is not int or one < 1:
                raise self.refusal(f"{name}[{place}]", f"must be an integer of at least 1, got {_short(one)}")
        return found

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        found = self.value(name)
        if not isinstance(found, list):
            raise self.refusal(name, f"must be a list, got {_short(found)}")
        return found

    def table(self, name: str) -> Self:
        """An object inside this one."""
        found = self.value(name)
        if not isinstance(found, dict):
            raise self.refusal(name, f"must be an object of named fields, got {_short(found)}")
        return type(self)(self.path, found, self.remedy, self._named(name))

    def _named(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
