"""Demonstrations as Phase I reads them: split into training and watching, gathered a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import Trajectories
from archetype_dagster.types import FloatArray, IndexArray


@dataclass(frozen=True)
class DemonstrationBatch:
    """B demonstrations on the training device: states (B, h, F), actions int64 (B, h), rewards (B, h) over m p_0."""

    states: Tensor
    actions: Tensor
    rewards: Tensor


@dataclass(frozen=True)
class Demonstrations:
    """Trajectories of one dataset; states stay views of the dataset until a batch is gathered.

    Attributes:
        dataset: the training split.
        trajectories: n planned horizons.
        rewards: float64 (n, h), step rewards over the notional m p_0.
        training: int64, trajectories that are learnt from.
        validation: int64, trajectories that are only watched; perhaps none.
        device: where batches are put.
    """

    dataset: MarketDataset
    trajectories: Trajectories
    rewards: FloatArray
    training: IndexArray
    validation: IndexArray
    device: torch.device

    @classmethod
    def of(
        cls,
        dataset: MarketDataset,
        trajectories: Trajectories,
        *,
        validation_fraction: float,
        device: torch.device,
    ) -> Self:
        """Check that the two fit and hold out the latest trajectories.

        Raises:
            ValueError: no trajectories, another horizon than the dataset's, or none left to learn from.
        """
        if len(trajectories.starts) == 0:
            raise ValueError("Phase I needs at least one trajectory, got 0")
        horizon = trajectories.actions.shape[1]
        if horizon != dataset.horizon_bars:
            raise ValueError(f"trajectories have horizon {horizon}, the dataset has {dataset.horizon_bars}")
        reach = dataset.horizon_bars + dataset.execution_delay_bars
        training, validation = hold_out_latest(trajectories.starts, validation_fraction, reach=reach)
        first_mark = dataset.mark[trajectories.starts + dataset.execution_delay_bars]
        rewards = trajectories.rewards / (dataset.max_position * first_mark[:, None])
        return cls(dataset, trajectories, rewards, training, validation, device)

    def batch(self, numbers: IndexArray) -> DemonstrationBatch:
        """Gather the trajectories `numbers` (B,)."""
        horizons = self.dataset.horizons(self.trajectories.starts[numbers])
        return DemonstrationBatch(
            states=torch.from_numpy(horizons.states).to(self.device),
            actions=torch.from_numpy(self.trajectories.actions[numbers].astype(np.int64)).to(self.device),
            rewards=torch.from_numpy(self.rewards[numbers].astype(np.float32)).to(self.device),
        )


def hold_out_latest(starts: IndexArray, fraction: float, *, reach: int) -> tuple[IndexArray, IndexArray]:
    """Numbers of the training trajectories and of the held-out ones, the latest `fraction` by start.

    Trajectories that overlap a held-out one are in neither, or the watch would see what was learnt.

    Args:
        starts: int64 (n,) first rows.
        fraction: share to hold out, rounded down to whole trajectories.
        reach: rows from a start to the last row its horizon touches.

    Raises:
        ValueError: every trajectory is held out or overlaps one that is.
    """
    count = int(fraction * len(starts))
    if not count:
        return np.arange(len(starts), dtype=np.int64), np.empty(0, dtype=np.int64)
    held = np.sort(np.argsort(starts, kind="stable")[-count:])
    training = np.flatnonzero(starts + reach < starts[held].min()).astype(np.int64)
    if not len(training):
        raise ValueError(
            f"validation_fraction={fraction} leaves none of {len(starts)} trajectories to learn from: the others "
            "overlap the held-out ones; lower it, 0 holds out nothing"
        )
    return training, held.astype(np.int64)
