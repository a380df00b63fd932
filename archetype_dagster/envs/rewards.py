"""The reward of every trade possible on every row, as one table that environments and Q-learners look up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards
from archetype_dagster.types import ActionArray, BoolArray, FloatArray


@dataclass(frozen=True)
class RewardTable:
    """Rewards of a dataset's T rows, each looked up by the action held before and the action taken.

    Attributes:
        percent: float64 (T, 3, 3), r_t = P_t (p_{t+1} - p_t) - O_t of `horizon_rewards` in percent of the notional
            m p_t, by (held, taken) action; zero where a row is not usable.
        usable: bool (T,), rows whose trade and the mark after it lie in the row's segment.
    """

    percent: FloatArray
    usable: BoolArray

    def earned(self, taken: ActionArray, held: ActionArray) -> FloatArray:
        """Reward of taking `taken` (T,) from `held` (T,) on each row: float64 (T,), percent of notional."""
        return self.percent[np.arange(len(self.percent)), held, taken]


def reward_table(dataset: MarketDataset) -> RewardTable:
    """The table of a dataset; with an execution delay d, row t trades at the mark and costs of row t + d."""
    reach = dataset.execution_delay_bars + 1
    usable = np.zeros(len(dataset), dtype=np.bool_)
    usable[:-reach] = dataset.segment[:-reach] == dataset.segment[reach:]
    executed = np.flatnonzero(usable) + dataset.execution_delay_bars
    held, taken = np.divmod(np.arange(9), 3)
    marks = np.stack((dataset.mark[executed], dataset.mark[executed + 1]), axis=1)
    money = horizon_rewards(
        np.broadcast_to(taken[:, np.newaxis], (len(executed), 9, 1)),
        marks[:, np.newaxis],
        dataset.costs[executed][:, np.newaxis, np.newaxis],
        max_position=dataset.max_position,
        initial_action=np.broadcast_to(held, (len(executed), 9)),
    )[..., 0]
    percent = np.zeros((len(dataset), 9))
    percent[usable] = 100 * money / (dataset.max_position * marks[:, :1])
    return RewardTable(percent.reshape(-1, 3, 3), usable)
