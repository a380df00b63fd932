"""Compiled functions work where neither the package nor the home folder can be written."""

from __future__ import annotations

import pytest
from numba.core import caching

from archetype_dagster.backtest.engine.compiled import compiled


def double(value: float) -> float:
    return 2 * value


def test_a_folder_that_cannot_be_written_costs_the_cache_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiled(double)
    assert kept(1.5) == 3.0
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache function"):
        caching.FunctionCache(double)
    assert compiled(double)(1.5) == 3.0
