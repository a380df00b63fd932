"""A small market with something to learn, shared by the tests of the learning phases.

Also run as a script's namespace by the tests that kill a training process, so it must not need pytest's state.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.settings import CodebookSettings, Settings, load_settings
from archetype_dagster.types import NoProgress, Progress

HORIZON = 6
FEATURES = 4
MAX_POSITION = 2.0

# A whole pipeline that trains in seconds.
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


def learnable_split(*, seed: int = 0, segments: tuple[int, ...] = (240, 160), delay: int = 0) -> MarketDataset:
    """Two segments of bars whose first feature leads a drift that lasts for some bars."""
    rng = np.random.default_rng(seed)
    rows = sum(segments)
    drift = np.repeat(rng.choice([-1.0, 1.0], rows // 10 + 1), 10)[:rows]
    mark = 100 * np.exp(np.cumsum(0.003 * drift + 0.001 * rng.normal(size=rows)))
    states = rng.normal(size=(rows, FEATURES))
    states[:, 0] = drift + 0.3 * states[:, 0]
    units = MAX_POSITION * np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=states.astype(np.float32),
        mark=mark,
        costs=units * (mark * rng.uniform(0.0002, 0.0004, rows))[:, None, None],
        segment=np.repeat(np.arange(len(segments)), segments).astype(np.int32),
        max_position=MAX_POSITION,
        horizon_bars=HORIZON,
        execution_delay_bars=delay,
    )


def random_codebook(*, seed: int = 0, num_codes: int = 4) -> Codebook:
    """An untrained codebook, sharp enough that its codes decode to different actions."""
    settings = CodebookSettings(num_codes=num_codes, code_dim=3, hidden_size=8)
    codebook = Codebook.untrained(FEATURES, HORIZON, settings, seed=seed)
    with seeded_initialisation(seed, "random_codebook"):
        torch.nn.init.normal_(codebook.quantizer.codes, std=2.0)
        torch.nn.init.normal_(codebook.decoder.head.weight, std=2.0)
    return codebook


@pytest.fixture(name="learnable_split")
def _learnable_split() -> Callable[..., MarketDataset]:
    return learnable_split


@pytest.fixture(name="random_codebook")
def _random_codebook() -> Callable[..., Codebook]:
    return random_codebook


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
