"""A small market whose first feature leads its drift, planned, for the tests of Phase I.

Also run as a script's namespace by the test that kills a training process.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook, train_codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import Trajectories, build_trajectories
from archetype_dagster.settings import CodebookSettings, PlannerSettings
from archetype_dagster.types import NoProgress, Progress

HORIZON = 8
FEATURES = 5
SETTINGS = CodebookSettings(
    num_codes=4, code_dim=3, hidden_size=16, epochs=6, batch_size=32, learning_rate=0.01, validation_fraction=0.1
)


def small_market(*, rows: int = 600, delay: int = 0, seed: int = 0) -> MarketDataset:
    """Rows in two segments; the mark drifts for eleven bars at a time in the direction of feature 0."""
    rng = np.random.default_rng(seed)
    drift = np.repeat(rng.choice([-1.0, 1.0], rows // 11 + 1), 11)[:rows]
    mark = 100 * np.exp(np.cumsum(0.004 * drift + 0.001 * rng.normal(size=rows)))
    states = rng.normal(size=(rows, FEATURES))
    states[:, 0] = drift + 0.3 * states[:, 0]
    units = 2.0 * np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=states.astype(np.float32),
        mark=mark,
        costs=units * (mark * rng.uniform(0.0002, 0.0004, rows))[:, None, None],
        segment=(np.arange(rows) >= rows // 2).astype(np.int32),
        max_position=2.0,
        horizon_bars=HORIZON,
        execution_delay_bars=delay,
    )


def planned(dataset: MarketDataset, *, count: int = 200) -> Trajectories:
    """Demonstrations of `dataset`."""
    settings = PlannerSettings(horizon_bars=HORIZON, num_trajectories=count)
    return build_trajectories(dataset, settings, seed=0, progress=NoProgress())


def trained(
    settings: CodebookSettings = SETTINGS,
    *,
    seed: int = 0,
    resume: ResumePoint | None = None,
    progress: Progress | None = None,
    dataset: MarketDataset | None = None,
) -> Codebook:
    """A codebook trained on the small market."""
    dataset = small_market() if dataset is None else dataset
    return train_codebook(
        dataset,
        planned(dataset),
        settings,
        seed=seed,
        device=torch.device("cpu"),
        resume=ResumePoint(None, "key") if resume is None else resume,
        progress=NoProgress() if progress is None else progress,
    )


def saved_bytes(codebook: Codebook, directory: Path) -> Mapping[str, bytes]:
    """The files of `codebook`, saved into a new folder."""
    directory.mkdir()
    codebook.save(directory)
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture
def settings() -> CodebookSettings:
    return SETTINGS


@pytest.fixture
def market() -> Callable[..., MarketDataset]:
    return small_market


@pytest.fixture
def plan() -> Callable[..., Trajectories]:
    return planned


@pytest.fixture
def train() -> Callable[..., Codebook]:
    return trained


@pytest.fixture
def files_of() -> Callable[..., Mapping[str, bytes]]:
    return saved_bytes
