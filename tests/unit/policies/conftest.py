"""Small environments whose observations are windows, and a backbone that has no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import nn

from archetype_dagster.policies import Backbone, register_backbone, registry

LENGTH, WIDTH = 6, 2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Windows(gym.Env[np.ndarray, Any]):
    """Random windows of L rows; reward for acting high, or for action 1."""

    def __init__(self, action_space: spaces.Space[Any], *, flat: bool = False) -> None:
        shape = (LENGTH * WIDTH,) if flat else (LENGTH, WIDTH)
        self.observation_space = spaces.Box(-4, 4, shape, np.float32)
        self.action_space = action_space
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._draw(), float(np.mean(action)), False, self.steps == 5, {}

    def _draw(self) -> np.ndarray:
        return self.np_random.normal(size=self.observation_space.shape).clip(-4, 4).astype(np.float32)


class Recall(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Reward for naming a bit that was shown `ago` rows before the current one; episodes of one step."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 64, ago: int = 3) -> None:
        self.num_envs, self.ago = num_envs, ago
        self.single_observation_space = spaces.Box(-1, 1, (LENGTH, WIDTH), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards = (actions == (self.shown[:, -1 - self.ago, 0] > 0)).astype(np.float64)
        ended = np.ones(self.num_envs, dtype=np.bool_)
        return self._draw(), rewards, ended, ~ended, {}

    def _draw(self) -> np.ndarray:
        self.shown = self.np_random.choice(np.float32([-1, 1]), size=(self.num_envs, LENGTH, WIDTH))
        return self.shown


class LastRow(Backbone):
    """An MLP on the current bar alone."""

    def __init__(self, input_features: int, sequence_length: int, output_dim: int) -> None:
        super().__init__(input_features, sequence_length, output_dim)
        self.layers = nn.Sequential(nn.Linear(input_features, 32), nn.ReLU(), nn.Linear(32, output_dim))

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        return self.layers(windows[:, -1])


@pytest.fixture
def windows_env() -> type[Windows]:
    return Windows


@pytest.fixture
def recall_env() -> type[Recall]:
    return Recall


@pytest.fixture
def last_row(monkeypatch: pytest.MonkeyPatch) -> str:
    """Alias of `LastRow`, registered for the test alone."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    register_backbone("LastRow")(LastRow)
    return "LastRow"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`register_backbone` that is undone after the test."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    return register_backbone
