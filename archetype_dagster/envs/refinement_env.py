"""Phase III as an environment: each step may override the archetype, once in a horizon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.codebook import Codebook
from archetype_dagster.envs.checks import LARGEST, check_begun, checked_choice, drawn_start
from archetype_dagster.envs.embedded import embedded_codebook, embedded_dataset, embedded_selector
from archetype_dagster.envs.plans import DecodedPlans
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards, rank_adaptations
from archetype_dagster.planning.overrides import apply_override, legal_override_mask
from archetype_dagster.refinement.adapter import context_size, refinement_context
from archetype_dagster.rl.stopping import NO_OVERRIDE
from archetype_dagster.selection import Selector
from archetype_dagster.selection.returns_table import training_starts
from archetype_dagster.settings import RefinementSettings, Settings
from archetype_dagster.types import ActionArray, IndexArray, StateArray


class RefinementEnv(gym.Env[StateArray, Any]):
    """The MDP inside a horizon: state and context of a bar; override short, do nothing, override long.

    The base plan is the selector's greedy code decoded, from flat. A legal override (Eq. 6) trades the rest of
    the horizon, earns r_ref of Eq. (8) in percent of m p_0 - what the refinement table holds for that bar and
    direction - and terminates the episode; an illegal one does nothing. Without an override the episode
    terminates with the horizon, and every reward is zero. The observation after the last step repeats the bar it
    ended on, since nothing is decided any more.

    An observation is the bar's state (F) followed by its context (`refinement_context`). `info` holds
    `timestamp`, `row`, `step` and `action_mask` bool (3,); in the end also `actions` int8 (h,) traded, and
    `return` and `base_return`, percent of m p_0.

    Args:
        dataset: rows of the market; by default four weeks of the embedded one.
        codebook: the frozen archetypes; by default seeded ones that nothing has trained.
        selector: chooses the base plan's code; by default a seeded one that nothing has trained.
        settings: override rule and regret weight.
        seed: of the first reset, if that names none.

    Raises:
        MarketDataError: no whole horizon in the dataset.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        dataset: MarketDataset | None = None,
        codebook: Codebook | None = None,
        selector: Selector | None = None,
        *,
        settings: RefinementSettings | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings or RefinementSettings()
        self.dataset = embedded_dataset() if dataset is None else dataset
        self.codebook = embedded_codebook(self.dataset) if codebook is None else codebook
        self.selector = embedded_selector(self.codebook) if selector is None else selector
        beta_1 = self.settings.beta_1
        self.beta_1 = Settings().pair(self.dataset.pair).beta_1 if beta_1 is None else beta_1
        size = self.dataset.num_features + context_size(self.codebook.codes.shape[1])
        self.observation_space = spaces.Box(-LARGEST, LARGEST, (size,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._starts = training_starts(self.dataset, 1, split="given")
        self._is_start = np.zeros(len(self.dataset), dtype=np.bool_)
        self._is_start[self._starts] = True
        self._plans = DecodedPlans(self._starts, self._base_plans)
        self._first_seed = seed
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Begin a horizon on a row drawn from those that a whole one follows, or on `options["start"]`.

        Raises:
            ValueError: an unknown option, or a start that no whole horizon follows.
        """
        super().reset(seed=self._first_seed if seed is None else seed)
        self._first_seed = None
        self._start = drawn_start(self._starts, self._is_start, self.np_random, options)
        self._batch = self.dataset.horizons(np.array([self._start]))
        codes = self.selector.choose_at(self.dataset, np.array([self._start]))
        self._base = self._plans.at(self._start)[np.newaxis]
        self._notional = self.dataset.max_position * self._batch.mark[:, 0]
        rewards = self._rewards_of(self._base)
        self._base_return = float(rewards.sum())
        self._context = refinement_context(
            self.codebook.embed(codes), self._base, rewards, self._notional, delay=self.dataset.execution_delay_bars
        )[0]
        self._legal = legal_override_mask(self._base)[0]
        self._step = 0
        self._is_over = False
        return self._observation(), self._info()

    def step(self, action: ArrayLike) -> tuple[StateArray, float, bool, bool, dict[str, Any]]:
        """Override (0 short, 2 long) or do nothing (1) on this bar.

        Raises:
            ResetNeeded: the episode is over, or none has begun.
            ValueError: anything but 0, 1 or 2.
        """
        check_begun(self._is_over)
        choice = checked_choice(action, 3)
        if self.action_masks()[choice] and choice != NO_OVERRIDE:
            return self._end(self._step, choice - 1)
        if self._step == self.dataset.horizon_bars - 1:
            return self._end(-1, 0)
        self._step += 1
        return self._observation(), 0.0, False, False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions do something on this bar, bool (3,); doing nothing always counts."""
        return np.array([self._legal[self._step, 0], True, self._legal[self._step, 1]])

    def _base_plans(self, starts: IndexArray) -> ActionArray:
        states = self.dataset.horizons(starts).states
        actions, _ = self.codebook.decode(states, self.selector.choose_at(self.dataset, starts))
        return actions

    def _end(self, step: int, direction: int) -> tuple[StateArray, float, bool, bool, dict[str, Any]]:
        self._is_over = True
        actions = apply_override(self._base, [step], [direction], self.settings.override)
        earned = float(self._rewards_of(actions).sum())
        # Hindsight enters the reward alone, as the regret of Eq. (8) asks.
        best = rank_adaptations(
            self._base, self._batch.mark, self._batch.costs, max_position=self.dataset.max_position,
            top=1, override=self.settings.override,
        ).returns[0, 0]  # fmt: skip
        percent = 100 / float(self._notional[0])
        reward = 0.0
        if direction:
            reward = earned - self._base_return + self.beta_1 * (earned - max(best, self._base_return))
        info = self._info() | {
            "actions": actions[0],
            "return": percent * earned,
            "base_return": percent * self._base_return,
        }
        return self._observation(), percent * reward, True, False, info

    def _rewards_of(self, actions: NDArray[np.int8]) -> NDArray[np.float64]:
        return horizon_rewards(actions, self._batch.mark, self._batch.costs, max_position=self.dataset.max_position)

    def _observation(self) -> StateArray:
        return np.concatenate((self._batch.states[0, self._step], self._context[self._step]))

    def _info(self) -> dict[str, Any]:
        row = self._start + self._step
        return {
            "timestamp": self.dataset.timestamps[row],
            "row": row,
            "step": self._step,
            "action_mask": self.action_masks(),
        }
