"""Many copies of the two hierarchical environments, stepped by looking the closed-form tables of both phases up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from archetype_dagster.envs.checks import LARGEST
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.refinement.adapter import assemble_context, context_size
from archetype_dagster.refinement.table import RefinementTable
from archetype_dagster.rl.stopping import NO_OVERRIDE
from archetype_dagster.selection.returns_table import ReturnsTable
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, StateArray

VectorStep = tuple[StateArray, FloatArray, BoolArray, BoolArray, dict[str, Any]]


class _TableVectorEnv(VectorEnv[StateArray, Any, Any], ABC):
    """N copies that each stand at one of a table's horizon starts; ended ones start anew in the same step.

    `info` holds `row` int64 (N,), the dataset row each copy stands on, and where episodes ended `final_obs`
    float32 (N, size) with `_final_obs` bool (N,).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, num_envs: int, dataset: MarketDataset, starts: IndexArray, size: int, choices: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be positive, got num_envs={num_envs}")
        self.num_envs = num_envs
        self.dataset = dataset
        self.single_observation_space = spaces.Box(-LARGEST, LARGEST, (size,), np.float32)
        self.single_action_space = spaces.Discrete(choices)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._starts = starts
        self._choices = choices
        # Place in the table and age of each copy.
        self._place = np.zeros(num_envs, dtype=np.int64)
        self._age = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Start an episode in every copy, on starts drawn uniformly or on `options["start"]`, one for all or (N,).

        Raises:
            ValueError: an unknown option, or a start that the table lacks.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        start = chosen.pop("start", None)
        if chosen:
            raise ValueError(f"options may hold 'start' only, got {sorted(chosen)}")
        self._age[:] = 0
        if start is None:
            self._place[:] = self.np_random.integers(len(self._starts), size=self.num_envs)
        else:
            self._place[:] = np.minimum(np.searchsorted(self._starts, start), len(self._starts) - 1)
            if (self._starts[self._place] != start).any():
                raise ValueError(f"start must be among the table's starts, got start={start}")
        return self._observe(), {"row": self._row()}

    def _checked(self, actions: Any) -> IndexArray:
        taken: NDArray[np.generic] = np.asarray(actions)
        if taken.shape != (self.num_envs,) or not np.issubdtype(taken.dtype, np.integer):
            raise ValueError(f"actions must be integers ({self.num_envs},), got {taken.dtype} of shape {taken.shape}")
        choice = taken.astype(np.int64)
        outside = (choice < 0) | (choice >= self._choices)
        if outside.any():
            raise ValueError(f"actions must lie in 0..{self._choices - 1}, got {choice[outside][0]}")
        return choice

    def _restarted(self, observations: StateArray, ended: BoolArray) -> dict[str, Any]:
        """Restart the copies that ended, writing their new observations; what `info` says of it."""
        info: dict[str, Any] = {}
        if ended.any():
            info = {"final_obs": np.where(ended[:, np.newaxis], observations, 0), "_final_obs": ended}
            self._place[ended] = self.np_random.integers(len(self._starts), size=int(ended.sum()))
            self._age[ended] = 0
            observations[ended] = self._observe()[ended]
        return {**info, "row": self._row()}

    @abstractmethod
    def _observe(self) -> StateArray:
        """float32 (N, size), the observation of every copy."""

    @abstractmethod
    def _row(self) -> IndexArray:
        """int64 (N,), the dataset's row that every copy stands on."""


class ArchetypeSelectionVectorEnv(_TableVectorEnv):
    """N copies of `ArchetypeSelectionEnv` on a returns table; episodes end where the table has no next horizon.

    Args:
        num_envs: N.
        dataset: the rows the table was built from.
        table: returns of every code from some starts.
        episode_horizons: longest episode in horizons.
    """

    def __init__(
        self, num_envs: int, dataset: MarketDataset, table: ReturnsTable, *, episode_horizons: int = 20
    ) -> None:
        if episode_horizons < 1:
            raise ValueError(f"episode_horizons must be positive, got episode_horizons={episode_horizons}")
        table.check_made_from(dataset)
        super().__init__(num_envs, dataset, table.starts, dataset.num_features, table.returns.shape[1])
        self.table = table
        self.episode_horizons = episode_horizons
        following = table.starts + dataset.horizon_bars
        self._next = np.minimum(np.searchsorted(table.starts, following), len(table) - 1)
        self._has_next = table.starts[self._next] == following

    def step(self, actions: Any) -> VectorStep:
        """Trade the archetypes `actions` (N,) for a horizon each.

        Raises:
            ValueError: anything but codes 0..K-1.
        """
        rewards = self.table.returns[self._place, self._checked(actions)]
        self._age += 1
        truncated = (self._age >= self.episode_horizons) | ~self._has_next[self._place]
        observations = self.dataset.states[self._row() + self.dataset.horizon_bars]
        self._place = self._next[self._place]
        info = self._restarted(observations, truncated)
        return observations, rewards, np.zeros(self.num_envs, dtype=np.bool_), truncated, info

    def _observe(self) -> StateArray:
        return self.dataset.states[self._row()]

    def _row(self) -> IndexArray:
        return self._starts[self._place]


class RefinementVectorEnv(_TableVectorEnv):
    """N copies of `RefinementEnv` on a refinement table; `info["action_mask"]` is bool (N, 3).

    Args:
        num_envs: N.
        dataset: the rows the table was built from.
        table: base plans and the reward of every override.
    """

    def __init__(self, num_envs: int, dataset: MarketDataset, table: RefinementTable) -> None:
        size = dataset.num_features + context_size(table.codes_embedding.shape[1])
        super().__init__(num_envs, dataset, table.starts, size, 3)
        self.table = table

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Begin a horizon in every copy; see the base class."""
        observations, info = super().reset(seed=seed, options=options)
        return observations, {**info, "action_mask": self.action_masks()}

    def step(self, actions: Any) -> VectorStep:
        """Override (0 short, 2 long) or do nothing (1) on each copy's bar.

        Raises:
            ValueError: anything but 0, 1 or 2.
        """
        choice = self._checked(actions)
        acts = (choice != NO_OVERRIDE) & self.action_masks()[np.arange(self.num_envs), choice]
        rewards = np.where(acts, self.table.rewards[self._place, self._age, choice // 2], 0.0)
        terminated = acts | (self._age == self.dataset.horizon_bars - 1)
        self._age += ~terminated
        observations = self._observe()
        info = self._restarted(observations, terminated)
        info["action_mask"] = self.action_masks()
        return observations, rewards, terminated, np.zeros(self.num_envs, dtype=np.bool_), info

    def action_masks(self) -> BoolArray:
        """Which actions do something, bool (N, 3); doing nothing always counts."""
        legal = self.table.legal[self._place, self._age]
        return np.stack((legal[:, 0], np.ones(self.num_envs, dtype=np.bool_), legal[:, 1]), axis=1)

    def _observe(self) -> StateArray:
        place, age = self._place, self._age
        base = self.table.base_actions[place, age][:, np.newaxis]
        context = assemble_context(
            self.table.codes_embedding[place], base, self.table.realised[place, age][:, np.newaxis]
        )
        horizon = self.dataset.horizon_bars
        context[:, 0, -1] = (horizon - age) / horizon
        return np.concatenate((self.dataset.states[self._row()], context[:, 0]), axis=1)

    def _row(self) -> IndexArray:
        return self._starts[self._place] + self._age
