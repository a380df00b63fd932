"""The shipped specifications with budgets so small that each trains within seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from archetype_dagster.settings.policy_specs import PolicySpec, load_policy_spec

_BRIEF = {
    **{"total_steps": 256, "copies": 2, "scaling.steps": 60},
    **{"validation.times": 2, "validation.episodes": 2, "evaluation.episodes": 3, "evaluation.bootstrap_samples": 100},
}
_PPO = {"algorithm.rollout_steps": 64, "algorithm.batch_size": 64, "algorithm.epochs": 1}
_SHORT: dict[str, dict[str, Any]] = {
    "transformer_stock_trading": {**_PPO, "environment.episode_bars": 30},
    "recurrent_portfolio": {
        **{"environment.episode_bars": 30, "algorithm.learning_starts": 32, "algorithm.batch_size": 32},
        **{"algorithm.train_interval": 8, "algorithm.buffer_steps": 200},
    },
    "autoencoder_marketmaking": {**_PPO, "environment.episode_bars": 30},
    "patchtst_execution": {**_PPO, "environment.horizon_bars": 20},
}


def brief_spec(name: str, changes: dict[str, Any] | None = None) -> PolicySpec:
    return load_policy_spec(name, {**_BRIEF, **_SHORT[name], **(changes or {})})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def brief() -> Callable[..., PolicySpec]:
    """A shipped specification in small, with further changes by dotted key."""
    return brief_spec
