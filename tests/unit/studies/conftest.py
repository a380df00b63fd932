"""One cache of stages for the tests of studies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archetype_dagster.pipeline.cache import StageCache


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[..., StageCache]) -> StageCache:
    """One cache for all tests that only add to it."""
    return cache_at(tmp_path_factory.mktemp("studies"))
