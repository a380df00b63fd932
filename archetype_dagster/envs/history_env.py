"""What the environments that allocate, make markets and execute share: rows of a panel seen through a window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from archetype_dagster.envs.checks import LARGEST, check_begun, checked_targets, drawn_start
from archetype_dagster.envs.price_panel import PricePanel
from archetype_dagster.errors import MarketDataError
from archetype_dagster.settings.task_environments import HistorySettings
from archetype_dagster.types import FloatArray, IndexArray, StateArray


class HistoryEnv(gym.Env[StateArray, Any]):
    """Episodes on the rows of a panel.

    An observation holds L bars, oldest first, of F numbers each: those of the market on that bar, then those of the
    account before it traded there; flat, float32 (L F,). A window lies in one segment and never pads the market.

    Args:
        panel: the rows.
        market: (T, C), the market's numbers on every row.
        names: of the C market numbers, then of the account's.
        warm_up: rows of a segment before its first whose market numbers may be shown.
        settings: lookback and starts.
        following: rows of the segment that must follow a start.
        actions: numbers in an action, each from -1 to 1.
        seed: of the first reset, if that names none.

    Attributes:
        baselines: names of the built-in policies, the best known first.
        bar_features: names of a bar's F numbers.
        lookback_bars: L.

    Raises:
        MarketDataError: no row has enough rows before and after it.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    baselines: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        panel: PricePanel,
        market: FloatArray,
        names: tuple[str, ...],
        *,
        warm_up: int,
        settings: HistorySettings,
        following: int,
        actions: int,
        seed: int | None,
    ) -> None:
        self.panel = panel
        self.bar_features = names
        self.lookback_bars = settings.lookback_bars
        self.observation_space = spaces.Box(-LARGEST, LARGEST, (self.lookback_bars * len(names),), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (actions,), np.float32)
        self._market = market.astype(np.float32)
        self._left = panel.rows_after
        history = warm_up + self.lookback_bars - 1
        self._is_start = (panel.rows_before >= history) & (self._left >= following)
        self._starts = np.flatnonzero(self._is_start)
        if not len(self._starts):
            raise MarketDataError(
                f"a start needs {history} rows before and {following} after it in its segment, and none of "
                f"{len(panel)} rows has them"
            )
        if settings.starts == "first":
            self._starts = self._starts[:1]
        self._window = np.zeros((self.lookback_bars, len(names)), dtype=np.float32)
        self._first_seed = seed
        self._row = 0
        self._steps = 0
        self._is_over = True

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of an observation's numbers in order; bars before the newest carry their age, as `trend[t-1]`."""
        ages = reversed(range(self.lookback_bars))
        return tuple(f"{name}[t-{age}]" if age else name for age in ages for name in self.bar_features)

    def rows_that_begin(self, episode_bars: int | None) -> IndexArray:
        """Rows on which an episode may begin that so many rows of its segment follow, whatever `starts` says.

        Raises:
            MarketDataError: there is none.
        """
        rows = np.flatnonzero(self._is_start & (self._left >= (episode_bars or 1)))
        if not len(rows):
            raise MarketDataError(f"no start has {episode_bars} rows of its segment after it among {len(self.panel)}")
        return rows

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[StateArray, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: of this and the following episodes; the first time the constructor's where there is none.
            options: `start`, the row to begin on instead of a drawn one.

        Raises:
            ValueError: an unknown option, or a start without enough rows before or after it.
        """
        super().reset(seed=self._first_seed if seed is None else seed)
        self._first_seed = None
        self._row = drawn_start(self._starts, self._is_start, self.np_random, options)
        self._steps = 0
        self._is_over = False
        self._begin()
        rows = np.arange(self._row - self.lookback_bars + 1, self._row + 1)
        self._window = np.concatenate((self._market[rows], self._account_at(rows).astype(np.float32)), axis=1)
        return self._window.ravel().copy(), self._info()

    def step(self, action: ArrayLike) -> tuple[StateArray, float, bool, bool, dict[str, Any]]:
        """Act on this row and let a bar pass.

        Raises:
            ValueError: an action of another shape, NaN, infinite, or outside -1..1.
            gymnasium.error.ResetNeeded: the episode is over, or none has begun.
        """
        check_begun(self._is_over)
        taken = checked_targets(action, self.action_space.shape or (), discrete=False)
        reward, events = self._act(taken)
        terminated = events["ended"] is not None
        truncated = not terminated and self._cut_off()
        self._is_over = terminated or truncated
        newest = np.append(self._market[self._row], self._account().astype(np.float32))
        self._window = np.concatenate((self._window[1:], newest[np.newaxis]))
        return self._window.ravel().copy(), reward, terminated, truncated, self._info() | events

    def baseline_action(self, name: str | None = None) -> FloatArray:
        """What a built-in policy does now: float64, the shape of an action; by default the first of `baselines`.

        Raises:
            ValueError: an unknown name.
        """
        name = self.baselines[0] if name is None else name
        if name not in self.baselines:
            raise ValueError(f"baseline must be one of {', '.join(self.baselines)}, got {name!r}")
        return self._baseline(name)

    def _advance(self) -> None:
        self._row += 1
        self._steps += 1

    def _account_at(self, rows: IndexArray) -> FloatArray:
        """The account's numbers on rows up to the start, (L, A): as it is at the start, unless said otherwise."""
        return np.tile(self._account(), (len(rows), 1))

    def _cut_off(self) -> bool:
        """Whether the episode ends here although the task goes on."""
        return bool(self._left[self._row] == 0)

    @abstractmethod
    def _begin(self) -> None:
        """Open the account on the row of the start."""

    @abstractmethod
    def _account(self) -> FloatArray:
        """The account's numbers now, (A,)."""

    @abstractmethod
    def _act(self, action: FloatArray) -> tuple[float, dict[str, Any]]:
        """Trade, advance a row, and return reward and what to tell of the step; `ended` is why it is over, or None."""

    @abstractmethod
    def _info(self) -> dict[str, Any]:
        """What is told after a reset as well as after a step."""

    @abstractmethod
    def _baseline(self, name: str) -> FloatArray:
        """What the baseline of that name does now."""
