"""Phase II as an environment: each step chooses the archetype of one horizon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from archetype_dagster.codebook import Codebook
from archetype_dagster.envs.checks import LARGEST, check_begun, checked_choice, drawn_start
from archetype_dagster.envs.embedded import embedded_codebook, embedded_dataset
from archetype_dagster.envs.plans import DecodedPlans
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards
from archetype_dagster.selection.returns_table import training_starts
from archetype_dagster.types import StateArray


class ArchetypeSelectionEnv(gym.Env[StateArray, Any]):
    """The MDP of horizons: the state at a horizon's start, an archetype, the horizon's return.

    A step decodes the chosen code over the horizon's h bars, trades its actions from flat and earns their
    return in percent of m p_0: what `archetype_returns` holds for that start and code. The next horizon begins
    where this one ended. An episode is truncated after `episode_horizons` steps or with the last whole horizon of
    its segment; nothing terminates. `info` holds `timestamp`, `row` and after a step the `actions` int8 (h,)
    traded and their `rewards` float64 (h,), percent of m p_0.

    Args:
        dataset: rows of the market; by default four weeks of the embedded one.
        codebook: the frozen archetypes; by default seeded ones that nothing has trained.
        episode_horizons: longest episode in horizons.
        seed: of the first reset, if that names none.

    Raises:
        ValueError: episode_horizons below 1.
        MarketDataError: no whole horizon in the dataset.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        dataset: MarketDataset | None = None,
        codebook: Codebook | None = None,
        *,
        episode_horizons: int = 20,
        seed: int | None = None,
    ) -> None:
        if episode_horizons < 1:
            raise ValueError(f"episode_horizons must be positive, got episode_horizons={episode_horizons}")
        self.dataset = embedded_dataset() if dataset is None else dataset
        self.codebook = embedded_codebook(self.dataset) if codebook is None else codebook
        self.episode_horizons = episode_horizons
        self.observation_space = spaces.Box(-LARGEST, LARGEST, (self.dataset.num_features,), np.float32)
        self.action_space = spaces.Discrete(self.codebook.num_codes)
        self._starts = training_starts(self.dataset, 1, split="given")
        self._is_start = np.zeros(len(self.dataset), dtype=np.bool_)
        self._is_start[self._starts] = True
        self._plans = DecodedPlans(
            self._starts, lambda starts: self.codebook.decode_all_codes(self.dataset.horizons(starts).states)
        )
        self._first_seed = seed
        self._row = 0
        self._steps = 0
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Begin an episode on a row drawn from those that a whole horizon follows, or on `options["start"]`.

        Raises:
            ValueError: an unknown option, or a start that no whole horizon follows.
        """
        super().reset(seed=self._first_seed if seed is None else seed)
        self._first_seed = None
        self._row = drawn_start(self._starts, self._is_start, self.np_random, options)
        self._steps = 0
        self._is_over = False
        return self._seen()

    def step(self, action: ArrayLike) -> tuple[StateArray, float, bool, bool, dict[str, Any]]:
        """Trade the archetype `action` for a horizon.

        Raises:
            ResetNeeded: the episode is over, or none has begun.
            ValueError: anything but a code 0..K-1.
        """
        check_begun(self._is_over)
        code = checked_choice(action, self.codebook.num_codes)
        batch = self.dataset.horizons(np.array([self._row]))
        actions = self._plans.at(self._row)[np.newaxis, code]
        money = horizon_rewards(actions, batch.mark, batch.costs, max_position=self.dataset.max_position)
        rewards = 100 * money[0] / (self.dataset.max_position * batch.mark[0, 0])
        self._row += self.dataset.horizon_bars
        self._steps += 1
        truncated = bool(self._steps >= self.episode_horizons or not self._is_start[self._row])
        self._is_over = truncated
        observation, info = self._seen()
        info |= {"actions": actions[0].copy(), "rewards": rewards}
        return observation, float(rewards.sum()), False, truncated, info

    def _seen(self) -> tuple[StateArray, dict[str, Any]]:
        info = {"timestamp": self.dataset.timestamps[self._row], "row": self._row}
        return self.dataset.states[self._row].copy(), info
