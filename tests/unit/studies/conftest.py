"""A market and budgets so small that a study trains in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings, load_settings
from archetype_dagster.types import NoProgress, Progress

TINY: Final[Mapping[str, Any]] = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-01-13T00:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-01-06T00:00:00Z",
    "splits.validation_start": "2023-01-06T00:00:00Z",
    "splits.validation_end": "2023-01-09T00:00:00Z",
    "splits.test_start": "2023-01-09T00:00:00Z",
    "splits.test_end": "2023-01-13T00:00:00Z",
    "planner.horizon_bars": 12,
    "planner.num_trajectories": 100,
    "codebook.num_codes": 4,
    "codebook.code_dim": 4,
    "codebook.hidden_size": 8,
    "codebook.epochs": 1,
    "codebook.batch_size": 64,
    "selection.total_steps": 3_000,
    "selection.stride_bars": 12,
    "selection.evaluations": 1,
    "refinement.total_steps": 1_500,
    "refinement.hidden_size": 8,
    "refinement.evaluations": 1,
    "studies.walk_forward_windows": 3,
    "studies.horizons_bars": (6, 12),
    "studies.code_counts": (2, 4),
}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Settings]:
    """The tiny settings with changes by dotted name."""

    def make(changes: Mapping[str, Any] | None = None) -> Settings:
        return load_settings("smoke", {**TINY, **(changes or {})})

    return make


@pytest.fixture(scope="session")
def cache_at() -> Callable[..., StageCache]:
    """A cache in a folder."""

    def make(root: Path, progress: Progress | None = None) -> StageCache:
        return StageCache(root, torch.device("cpu"), progress or NoProgress())

    return make


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[..., StageCache]) -> StageCache:
    """One cache for all tests that only add to it."""
    return cache_at(tmp_path_factory.mktemp("studies"))
