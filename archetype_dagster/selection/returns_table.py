"""The full-information table of Phase II: what each archetype would have earned from each start.

The decoder is frozen, so a code fixes a horizon's actions and its return is known exactly. Labels come from
hindsight demonstrations; they are a training signal and never reach a policy's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from archetype_dagster.artifacts import read_table
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.dataset import HorizonBatch, MarketDataset
from archetype_dagster.planning import horizon_rewards, plan_single_trade
from archetype_dagster.settings import PlannerSettings, SelectionSettings
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, Progress, StateArray

# Bounds the memory: states and costs of a chunk take about 20 MB at the paper's sizes.
CHUNK_STARTS: Final = 512
_RETURN_PREFIX: Final = "return_"


@dataclass(frozen=True)
class ReturnsTable:
    """Returns of K codes from n horizon starts of one split.

    Attributes:
        starts: int64 (n,), rows of the split's dataset.
        timestamps: datetime64[us] (n,), bar ends of those rows, UTC.
        returns: float64 (n, K), undiscounted return of each code from flat, percent of m p_0.
        labels: int64 (n,), the encoder's code of the horizon's hindsight demonstration.
    """

    starts: IndexArray
    timestamps: NDArray[np.datetime64]
    returns: FloatArray
    labels: IndexArray

    def __len__(self) -> int:
        return len(self.starts)

    def check_made_from(self, dataset: MarketDataset) -> None:
        """Raise `ArtifactError` unless the starts are rows of `dataset`."""
        inside = self.starts < len(dataset)
        if not inside.all() or not np.array_equal(dataset.timestamps[self.starts], self.timestamps):
            raise ArtifactError(
                f"the archetype returns of {self.timestamps[0]}..{self.timestamps[-1]} were built from another "
                "dataset; materialise archetype_returns again"
            )

    def frame(self) -> pl.DataFrame:
        """One row per start: start, timestamp, label, return_0 .. return_{K-1}."""
        columns = {f"{_RETURN_PREFIX}{code}": self.returns[:, code] for code in range(self.returns.shape[1])}
        frame = pl.DataFrame({"start": self.starts, "timestamp": self.timestamps, "label": self.labels, **columns})
        return frame.with_columns(pl.col("timestamp").dt.replace_time_zone("UTC"))

    @classmethod
    def from_frame(cls, frame: pl.DataFrame) -> Self:
        """The inverse of `frame`."""
        returns = frame.select(pl.col(f"^{_RETURN_PREFIX}\\d+$"))
        timestamps = frame["timestamp"].dt.replace_time_zone(None).to_numpy()
        return cls(
            frame["start"].to_numpy().astype(np.int64),
            timestamps.astype("datetime64[us]"),
            np.ascontiguousarray(returns.to_numpy(), dtype=np.float64),
            frame["label"].to_numpy().astype(np.int64),
        )


@dataclass(frozen=True)
class ArchetypeReturns:
    """The returns table of the training and of the validation split."""

    train: ReturnsTable
    validation: ReturnsTable

    @property
    def num_codes(self) -> int:
        """Number of archetypes K."""
        return int(self.train.returns.shape[1])

    def save(self, directory: Path) -> None:
        """Write train.parquet and validation.parquet into an existing folder."""
        self.train.frame().write_parquet(directory / "train.parquet")
        self.validation.frame().write_parquet(directory / "validation.parquet")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or foreign."""
        parts = []
        for name in ("train.parquet", "validation.parquet"):
            frame = read_table(directory / name)
            if not {"start", "timestamp", "label", f"{_RETURN_PREFIX}0"} <= set(frame.columns):
                raise ArtifactError(f"{directory / name} is no table of archetype returns; it holds {frame.columns}")
            parts.append(ReturnsTable.from_frame(frame))
        return cls(*parts)


def build_archetype_returns(
    train: MarketDataset,
    validation: MarketDataset,
    codebook: Codebook,
    planner: PlannerSettings,
    selection: SelectionSettings,
    *,
    device: torch.device,
    progress: Progress,
) -> ArchetypeReturns:
    """Return and label of every training start at the settings' stride and every validation start at stride h.

    Args:
        train: training split.
        validation: validation split.
        codebook: the frozen archetypes.
        planner: how the demonstrations behind the labels are planned.
        selection: gives the stride.
        device: where the networks run.
        progress: told the starts done.

    Raises:
        MarketDataError: a split without a single whole horizon.
    """
    train_starts = training_starts(train, selection.stride_bars, split="training")
    validation_starts = training_starts(validation, validation.horizon_bars, split="validation")
    progress.start("archetype returns", len(train_starts) + len(validation_starts))
    codebook = codebook.to(device)
    parts = [
        _build_part(dataset, starts, codebook, planner, progress, done)
        for dataset, starts, done in ((train, train_starts, 0), (validation, validation_starts, len(train_starts)))
    ]
    progress.finish()
    return ArchetypeReturns(*parts)


def training_starts(dataset: MarketDataset, stride: int, *, split: str) -> IndexArray:
    """Horizon starts of a split, int64 (n,) with n >= 1; `MarketDataError` says what is there if there is none."""
    starts = dataset.horizon_starts(stride)
    if not len(starts):
        needed = dataset.horizon_bars + dataset.execution_delay_bars + 1
        raise MarketDataError(
            f"the {split} split of {dataset.pair} holds no whole horizon: {len(dataset)} rows, "
            f"but {needed} in one segment are needed"
        )
    return starts


def archetype_returns(batch: HorizonBatch, codebook: Codebook, *, max_position: float) -> FloatArray:
    """Return of every code on every horizon of a batch, from flat: float64 (B, K), percent of m p_0."""
    return plan_returns(codebook.decode_all_codes(batch.states), batch, max_position=max_position)


def plan_returns(actions: ActionArray, batch: HorizonBatch, *, max_position: float) -> FloatArray:
    """Return of K action sequences int8 (B, K, h) on each horizon, from flat: float64 (B, K), percent of m p_0."""
    # One plan at a time: broadcasting K of them against the costs would copy the costs K times.
    earned = [
        horizon_rewards(np.ascontiguousarray(actions[:, plan]), batch.mark, batch.costs, max_position=max_position).sum(
            axis=1
        )
        for plan in range(actions.shape[1])
    ]
    notional = max_position * batch.mark[:, 0]
    returns: FloatArray = 100 * np.stack(earned, axis=1) / notional[:, np.newaxis]
    return returns


def demonstration_codes(
    batch: HorizonBatch, codebook: Codebook, planner: PlannerSettings, *, max_position: float
) -> IndexArray:
    """The code that the encoder gives the planner's demonstration of each horizon (hindsight): int64 (B,)."""
    return codebook.encode(batch.states, *_demonstrations(batch, planner, max_position))


def demonstration_embeddings(
    batch: HorizonBatch, codebook: Codebook, planner: PlannerSettings, *, max_position: float
) -> StateArray:
    """What the encoder makes of that demonstration before any quantisation (hindsight): float32 (B, D)."""
    return codebook.encodings(batch.states, *_demonstrations(batch, planner, max_position))


def _demonstrations(
    batch: HorizonBatch, planner: PlannerSettings, max_position: float
) -> tuple[ActionArray, FloatArray]:
    """The planner's actions int8 (B, h) and their rewards over the notional m p_0, float64 (B, h)."""
    actions = plan_single_trade(
        batch.mark,
        batch.costs,
        max_position=max_position,
        gamma=planner.gamma,
        trade_constraint=planner.trade_constraint,
    )
    rewards = horizon_rewards(actions, batch.mark, batch.costs, max_position=max_position)
    return actions, rewards / (max_position * batch.mark[:, :1])


def _build_part(
    dataset: MarketDataset,
    starts: IndexArray,
    codebook: Codebook,
    planner: PlannerSettings,
    progress: Progress,
    done: int,
) -> ReturnsTable:
    returns, labels = [], []
    for first in range(0, len(starts), CHUNK_STARTS):
        batch = dataset.horizons(starts[first : first + CHUNK_STARTS])
        returns.append(archetype_returns(batch, codebook, max_position=dataset.max_position))
        labels.append(demonstration_codes(batch, codebook, planner, max_position=dataset.max_position))
        progress.advance(done + first + len(batch))
    return ReturnsTable(starts, dataset.timestamps[starts], np.concatenate(returns), np.concatenate(labels))
