"""Readers of vendors' formats, one module each, found by name in `SOURCES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from archetype_dagster.market.raw import Source

_ALL: Final[tuple[Source, ...]] = ()

SOURCES: Final[Mapping[str, Source]] = MappingProxyType({source.name: source for source in _ALL})
"""Every source by its name in settings and on the command line."""
