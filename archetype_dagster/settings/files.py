"""YAML files that hold settings: those shipped in `configs/`, and a user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings.yaml_text import read_yaml


def config_text(relative_path: str) -> str:
    """Text of a file shipped in `configs/`."""
    return resources.files("configs").joinpath(relative_path).read_text(encoding="utf-8")


def shipped_names(folder: str) -> tuple[str, ...]:
    """Names of the YAML files in a folder of `configs/`, sorted, without their ending."""
    entries = resources.files("configs").joinpath(folder).iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml")))


def named_mapping(name: str, folder: str, *, kind: str) -> dict[str, Any]:
    """The mapping in a shipped YAML file, or in a user's.

    Args:
        name: a shipped name, or the path of a `.yaml` file.
        folder: folder of `configs/` with the shipped files.
        kind: what messages call such a file, e.g. `profile`.

    Raises:
        SettingsError: no such name or file, YAML that cannot be read, or something other than a mapping in it.
    """
    if Path(name).suffix in {".yaml", ".yml"}:
        path = Path(name)
        if not path.is_file():
            raise SettingsError(f"settings file {name} does not exist")
        text = path.read_text(encoding="utf-8")
    elif name in shipped_names(folder):
        text = config_text(f"{folder}/{name}.yaml")
    else:
        raise SettingsError(
            f"unknown {kind} {name!r}; choose from {', '.join(shipped_names(folder))} or name a .yaml file"
        )
    tree = read_yaml(text, f"settings file {name}") or {}
    if not isinstance(tree, dict):
        raise SettingsError(f"settings file {name} must hold a mapping, got {type(tree).__name__}")
    return tree
