"""The environment of a specification on each of its windows, and observations as its policy reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from archetype_dagster.envs import (
    HistoryEnv,
    MarketMakingEnv,
    OptimalExecutionEnv,
    PortfolioAllocationEnv,
    StockTradingEnv,
)
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.policy_training.prices import load_prices, within
from archetype_dagster.seeding import derive_seed, numpy_generator
from archetype_dagster.settings.policy_specs import PolicySpec, ScalingSettings
from archetype_dagster.types import StateArray

_ENVIRONMENTS: Final[Mapping[str, Callable[..., HistoryEnv]]] = MappingProxyType(
    {
        "StockTradingEnv": StockTradingEnv,
        "PortfolioAllocationEnv": PortfolioAllocationEnv,
        "MarketMakingEnv": MarketMakingEnv,
        "OptimalExecutionEnv": OptimalExecutionEnv,
    }
)


@dataclass(frozen=True)
class Tasks:
    """One environment a window; none has an episode begun.

    Attributes:
        train: what the policy learns on.
        validation: what the weights kept are chosen on.
        evaluation: the held-out window.
    """

    train: HistoryEnv
    validation: HistoryEnv
    evaluation: HistoryEnv

    @classmethod
    def of(cls, spec: PolicySpec) -> Self:
        """The environments of a specification.

        Raises:
            MarketDataError: prices that cannot be read, or a window without an episode.
            SettingsError: unknown pair.
        """
        prices = load_prices(spec.universe)
        make, windows = _ENVIRONMENTS[spec.environment.name], spec.windows
        return cls(
            *(
                make(within(prices, window), settings=spec.environment)
                for window in (windows.window("train"), windows.window("validation"), windows.window("evaluation"))
            )
        )


class ScaledObservations(gym.ObservationWrapper[StateArray, Any, StateArray]):
    """An environment whose bars are scaled.

    Args:
        env: observations float32 (L F,).
        scaler: of the F numbers of a bar.
    """

    def __init__(self, env: HistoryEnv, scaler: FeatureScaler) -> None:
        super().__init__(env)
        self.scaler = scaler
        self.observation_space = spaces.Box(
            -scaler.clip_sigma, scaler.clip_sigma, env.observation_space.shape, np.float32
        )

    def observation(self, observation: StateArray) -> StateArray:
        """The bars of one observation, scaled."""
        return scaled(self.scaler, observation)


def scaled(scaler: FeatureScaler | None, observations: StateArray) -> StateArray:
    """Observations (..., L F) with every bar's F numbers scaled; as they are where there is no scaler."""
    if scaler is None:
        return observations
    bars = observations.reshape(*observations.shape[:-1], -1, len(scaler.mean))
    return scaler.transform(bars.astype(np.float64)).reshape(observations.shape)


def random_observations(env: HistoryEnv, steps: int, *, seed: int) -> StateArray:
    """What is seen while random actions are taken, float32 (steps, L F): first observations and those after steps."""
    env, generator, over = copy(env), numpy_generator(seed, "random_observations", "actions"), True
    seen = np.empty((steps, *(env.observation_space.shape or ())), dtype=np.float32)
    first: int | None = derive_seed(seed, "random_observations", "starts")
    for step in range(steps):
        if over:
            seen[step], _ = env.reset(seed=first)
            first, over = None, False
        else:
            action = generator.uniform(-1.0, 1.0, env.action_space.shape)
            seen[step], _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
    return seen


def fit_scaler(env: HistoryEnv, settings: ScalingSettings | None, *, seed: int) -> FeatureScaler | None:
    """Means and deviations of a bar's F numbers while random actions are taken; None where nothing is scaled.

    Args:
        env: of the training window.
        settings: how many steps are measured.
        seed: seed of the run.
    """
    if settings is None:
        return None
    newest = random_observations(env, settings.steps, seed=seed)[:, -len(env.bar_features) :]
    return FeatureScaler.fit(newest.astype(np.float64), clip_sigma=settings.clip_sigma)


def training_copies(env: HistoryEnv, spec: PolicySpec, scaler: FeatureScaler | None) -> list[gym.Env[StateArray, Any]]:
    """Environments with episodes of their own that share the prices and what was computed from them.

    Their observations are scaled, and their rewards are multiplied by `reward_scale`.
    """
    bases = [copy(env) for _ in range(spec.copies)]
    made = bases if scaler is None else [ScaledObservations(one, scaler) for one in bases]
    return [gym.wrappers.TransformReward(one, lambda reward: spec.reward_scale * float(reward)) for one in made]
