"""Many copies of one market, stepped by two compiled loops: the core that environments wrap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.envs.batched_kernel import gather_states, trade_rows
from archetype_dagster.envs.rewards import reward_table
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.types import FLAT, BoolArray, FloatArray, IndexArray, StateArray


class Step(NamedTuple):
    """What N copies answer to N actions.

    Attributes:
        observations: float32 (N, F + 3), where each copy stands now; the first of a new episode where one ended.
        rewards: float64 (N,), percent of the notional m p_t.
        truncated: bool (N,), copies whose episode ended with this step. None ever terminates.
        final_observations: float32 (n, F + 3), where those n copies stood before they were reset, in their order.
    """

    observations: StateArray
    rewards: FloatArray
    truncated: BoolArray
    final_observations: StateArray


class Advance(NamedTuple):
    """What a step without observations answers.

    Attributes:
        rewards: float64 (N,), percent of the notional m p_t.
        truncated: bool (N,), copies whose episode ended with this step.
        final_rows: int64 (n,), rows on which those n copies stood before they were reset, in their order.
        final_held: int64 (n,), the actions they held there.
    """

    rewards: FloatArray
    truncated: BoolArray
    final_rows: IndexArray
    final_held: IndexArray


class BatchedTradingEnv:
    """N independent episodes on one dataset's cost table.

    An episode starts flat on a usable row drawn uniformly, and is cut off after `episode_bars` steps or after
    its segment's last usable row. That is no end of the market, so a learner bootstraps from the final
    observation. An observation is the row's state followed by the held action, one-hot.

    Args:
        dataset: rows to trade; read at every step and never changed.
        num_envs: number of copies N.
        episode_bars: longest episode in steps.
        generator: draws the starts.

    Raises:
        ValueError: num_envs or episode_bars below 1.
        MarketDataError: no row can be traded.
    """

    def __init__(
        self, dataset: MarketDataset, *, num_envs: int, episode_bars: int, generator: np.random.Generator
    ) -> None:
        if num_envs < 1 or episode_bars < 1:
            raise ValueError(
                f"num_envs and episode_bars must be positive, got num_envs={num_envs}, episode_bars={episode_bars}"
            )
        table = reward_table(dataset)
        if not table.usable.any():
            raise MarketDataError(
                f"no row of {dataset.pair} can be traded: {len(dataset)} rows, none with "
                f"{dataset.execution_delay_bars + 1} more after it in its segment"
            )
        self.dataset = dataset
        self.num_envs = num_envs
        self.episode_bars = episode_bars
        self.generator = generator
        self._rewards = table.percent.reshape(-1)
        self._usable = np.flatnonzero(table.usable)
        # First row at or after each row on which no trade is possible any more: where an episode must end.
        stops = np.flatnonzero(~table.usable)
        self._stop = stops[np.searchsorted(stops, np.arange(len(dataset)))]
        self._states = np.ascontiguousarray(dataset.states)
        self._row = np.zeros(num_envs, dtype=np.int64)
        self._held = np.full(num_envs, FLAT, dtype=np.int64)
        self._end = np.zeros(num_envs, dtype=np.int64)

    @property
    def observation_size(self) -> int:
        """F + 3."""
        return self.dataset.num_features + 3

    @property
    def rows(self) -> IndexArray:
        """int64 (N,), the dataset row on which each copy decides next."""
        return self._row.copy()

    @property
    def held(self) -> IndexArray:
        """int64 (N,), the action each copy holds."""
        return self._held.copy()

    def reset(self) -> StateArray:
        """Start a new episode in every copy; float32 (N, F + 3)."""
        self._restart(np.arange(self.num_envs))
        return self.observe()

    def observe(self, out: StateArray | None = None) -> StateArray:
        """The current observations, float32 (N, F + 3), written into `out` where given, which must be C-contiguous."""
        if out is not None and not out.flags.c_contiguous:
            raise ValueError("out must be C-contiguous, got a strided array")
        seen = np.empty((self.num_envs, self.observation_size), dtype=np.float32) if out is None else out
        if seen.shape != (self.num_envs, self.observation_size) or seen.dtype != np.float32:
            raise ValueError(
                f"out must be float32 ({self.num_envs}, {self.observation_size}), got {seen.dtype} {seen.shape}"
            )
        gather_states(self._states, self._row, self._held, seen)
        return seen

    def step(self, actions: ArrayLike, *, out: StateArray | None = None) -> Step:
        """Trade one bar in every copy.

        Args:
            actions: integers (N,): 0 short, 1 flat, 2 long.
            out: C-contiguous float32 (N, F + 3) to write the observations into, instead of a new array.

        Raises:
            ValueError: actions of another shape, or an action outside 0..2.
        """
        moved = self.advance(actions)
        final = np.empty((len(moved.final_rows), self.observation_size), dtype=np.float32)
        gather_states(self._states, moved.final_rows, moved.final_held, final)
        return Step(self.observe(out), moved.rewards, moved.truncated, final)

    def advance(self, actions: ArrayLike) -> Advance:
        """As `step`, without gathering any observation: for learners that look states up by `rows` themselves.

        Raises:
            ValueError: as `step`.
        """
        taken = np.asarray(actions, dtype=np.int64)
        if taken.shape != self._row.shape:
            raise ValueError(f"actions must be one per copy ({self.num_envs},), got shape {taken.shape}")
        rewards, truncated = np.empty(self.num_envs), np.empty(self.num_envs, dtype=np.bool_)
        if not trade_rows(taken, self._row, self._held, self._end, self._rewards, rewards, truncated):
            raise ValueError(f"actions must be 0, 1 or 2, got {sorted(set(taken[(taken < 0) | (taken > 2)].tolist()))}")
        ended = np.flatnonzero(truncated)
        rows, held = self._row[ended], self._held[ended]
        if ended.size:
            self._restart(ended)
        return Advance(rewards, truncated, rows, held)

    def state(self) -> dict[str, IndexArray]:
        """Where every copy stands, as int64 (N,) arrays; the generator is the caller's to keep."""
        return {"row": self._row.copy(), "held": self._held.copy(), "end": self._end.copy()}

    def restore(self, state: Mapping[str, NDArray[np.int64]]) -> None:
        """Put every copy where `state` found it.

        Raises:
            ValueError: the state of another number of copies, of rows that this dataset lacks, or of no action.
        """
        for name, own in (("row", self._row), ("held", self._held), ("end", self._end)):
            if name not in state or state[name].shape != own.shape:
                raise ValueError(f"the state must hold {name!r} for {self.num_envs} copies, got {sorted(state)}")
        if state["row"].min() < 0 or state["end"].max() >= len(self.dataset):
            raise ValueError(f"the state holds rows outside 0..{len(self.dataset) - 1}")
        if (state["row"] > state["end"]).any() or not np.isin(state["held"], (0, 1, 2)).all():
            raise ValueError("the state must hold rows up to their episodes' ends and actions 0, 1 or 2")
        self._row[:], self._held[:], self._end[:] = state["row"], state["held"], state["end"]

    def _restart(self, copies: IndexArray) -> None:
        starts = self._usable[self.generator.integers(len(self._usable), size=len(copies))]
        self._row[copies] = starts
        self._held[copies] = FLAT
        self._end[copies] = np.minimum(starts + self.episode_bars, self._stop[starts])
