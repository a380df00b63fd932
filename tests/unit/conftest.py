"""A small market with something to learn, shared by the tests of the learning phases.

Also run as a script's namespace by the tests that kill a training process, so it must not need pytest's state.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.settings import CodebookSettings

HORIZON = 6
FEATURES = 4
MAX_POSITION = 2.0


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
