"""What a baseline is: the protocol of a fitted strategy, and how its decisions are rolled out.

A strategy knows a dataset's rows up to the current one and the position it holds. Its decision on a row
is therefore a map {held action -> next action}; `rolled_out` composes the maps of all rows at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from archetype_dagster.backtest.policy import carried_actions
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import RewardTable
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import FLAT, ActionArray, BoolArray, Progress


class Strategy(Protocol):
    """A fitted baseline."""

    @property
    def name(self) -> str:
        """Key of `BASELINES`."""

    def actions(self, dataset: MarketDataset) -> ActionArray:
        """The action of every row, int8 (T,): 0 short, 1 flat, 2 long.

        Row t's action depends on rows up to t alone. A segment is entered flat; inside it the position is
        carried, over ends of horizons too.
        """

    def save(self, directory: Path) -> None:
        """Write everything that `load_baseline` needs into an existing folder."""


class Fit(Protocol):
    """How a baseline is fitted; see `fit_baseline`."""

    def __call__(
        self,
        train: MarketDataset,
        validation: MarketDataset,
        settings: BaselineSettings,
        *,
        seed: int,
        device: torch.device,
        resume: ResumePoint,
        progress: Progress,
    ) -> Strategy:
        """Fit on the training split; what is chosen by data is chosen on these two splits alone."""


class Load(Protocol):
    """How a saved baseline is read; see `load_baseline`."""

    def __call__(self, directory: Path) -> Strategy:
        """Read what `Strategy.save` wrote."""


def rolled_out(next_actions: ActionArray, segment: NDArray[np.int32]) -> ActionArray:
    """The actions taken when each row's decision starts from the action of the row before.

    Args:
        next_actions: integers (T, 3), action of row t when action i is held before it.
        segment: int32 (T,), equal for rows without a gap between them; each one is entered flat.

    Returns:
        int8 (T,).

    Raises:
        ValueError: shapes that do not belong together.
    """
    if next_actions.shape != (*segment.shape, 3):
        raise ValueError(
            f"next_actions must be (T, 3) for T = {len(segment)} rows of segment, got {next_actions.shape}"
        )
    held = carried_actions(next_actions, _fresh(segment))
    return next_actions[np.arange(len(segment)), held].astype(np.int8)


def mean_reward(actions: ActionArray, dataset: MarketDataset, table: RewardTable) -> float:
    """Mean reward of a strategy's actions over the rows that can be traded, percent of notional per bar.

    Args:
        actions: int8 (T,), one per row of `dataset`; each segment is entered flat.
        dataset: the rows.
        table: their `reward_table`.
    """
    held = np.full(len(actions), FLAT, dtype=np.int8)
    held[1:] = np.where(_fresh(dataset.segment)[1:], FLAT, actions[:-1])
    return float(table.earned(actions, held)[table.usable].mean())


def _fresh(segment: NDArray[np.int32]) -> BoolArray:
    fresh = np.ones(len(segment), dtype=np.bool_)
    fresh[1:] = segment[1:] != segment[:-1]
    return fresh
