"""Backbones by alias: the ones here, and those that other packages register.

Another package registers a class with `register_backbone`, or names it as an entry point of the group
`archetype_dagster.backbones`, whose name is the alias. Only installed entry points are ever imported, never a path
found in a specification.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from torch import nn

from archetype_dagster.errors import SettingsError

ENTRY_POINT_GROUP: Final = "archetype_dagster.backbones"
_SIZES: Final = ("input_features", "sequence_length", "output_dim")
_REGISTERED: Final[dict[str, tuple[str, type[nn.Module]]]] = {}
Network = TypeVar("Network", bound=type[nn.Module])


def register_backbone(alias: str) -> Callable[[Network], Network]:
    """Class decorator that makes an nn.Module available under `alias`, whatever the case it is written in.

    The class is called as `cls(input_features=F, sequence_length=L, output_dim=D, **backbone_kwargs)`; deriving it
    from `Backbone` gives it the checks of shape.

    Raises:
        SettingsError: the alias is empty or taken, or the class is no nn.Module.
    """

    def register(network: Network) -> Network:
        if not alias.strip():
            raise SettingsError(f"a backbone's alias must not be empty, got {alias!r}")
        if not (isinstance(network, type) and issubclass(network, nn.Module)):
            raise SettingsError(f"backbone {alias!r} must be a class derived from torch.nn.Module, got {network!r}")
        taken = _REGISTERED.get(alias.casefold())
        if taken is not None:
            raise SettingsError(f"backbone {alias!r} is already registered by {_path(taken[1])}")
        _REGISTERED[alias.casefold()] = (alias, network)
        return network

    return register


def backbone_aliases() -> tuple[str, ...]:
    """Every alias, registered or installed, sorted; an entry point is named without being imported."""
    installed = {entry.name.casefold(): entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(sorted({**installed, **{key: alias for key, (alias, _) in _REGISTERED.items()}}.values()))


def backbone_class(alias: str) -> type[nn.Module]:
    """The class registered or installed as `alias`.

    Raises:
        SettingsError: unknown alias, with the choices; two packages install it; what is installed is no nn.Module.
    """
    known = _REGISTERED.get(alias.casefold())
    if known is not None:
        return known[1]
    found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name.casefold() == alias.casefold()]
    if not found:
        raise SettingsError(f"unknown backbone {alias!r}; choose from {', '.join(backbone_aliases())}")
    if len(found) > 1:
        raise SettingsError(f"backbone {alias!r} is installed by {' and '.join(entry.value for entry in found)}")
    return _installed(found[0])


def build_backbone(
    alias: str,
    *,
    input_features: int,
    sequence_length: int,
    output_dim: int,
    backbone_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """An untrained backbone; its weights come from torch's global stream.

    Args:
        alias: name in any case.
        input_features: numbers F of a row.
        sequence_length: rows L of a window, oldest first, the last one the current bar.
        output_dim: features that come out.
        backbone_kwargs: the backbone's own arguments.

    Returns:
        float32 (B, L, F) or (B, L F) -> (B, output_dim).

    Raises:
        SettingsError: unknown alias or argument, with the choices, or a value out of range.
    """
    network = backbone_class(alias)
    arguments = dict(backbone_kwargs or {})
    parameters = inspect.signature(network).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        choices = [name for name in parameters if name not in _SIZES]
        unknown = sorted(set(arguments) - set(choices))
        if unknown:
            raise SettingsError(f"{alias} takes no backbone_kwargs {unknown}; choose from {', '.join(choices)}")
    repeated = sorted(set(arguments) & set(_SIZES))
    if repeated:
        raise SettingsError(f"{repeated} are arguments of their own and not backbone_kwargs")
    return network(input_features=input_features, sequence_length=sequence_length, output_dim=output_dim, **arguments)


build_backbone_from_alias = build_backbone


def _installed(entry: EntryPoint) -> type[nn.Module]:
    loaded = entry.load()
    known = _REGISTERED.get(entry.name.casefold())
    # The module may have used the decorator when it was imported.
    if known is None or known[1] is not loaded:
        register_backbone(entry.name)(loaded)
    return _REGISTERED[entry.name.casefold()][1]


def _path(network: type[nn.Module]) -> str:
    return f"{network.__module__}.{network.__qualname__}"
