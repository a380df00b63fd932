"""The demonstrations Phase I learns from: planned training horizons, and the audit of such a set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.artifacts import read_table
from archetype_dagster.errors import ArtifactError, MarketDataError, SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.rewards import horizon_rewards
from archetype_dagster.planning.single_trade import SingleTradePlans, best_plans, obeys_constraint
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import PlannerSettings
from archetype_dagster.types import LONG, SHORT, ActionArray, FloatArray, IndexArray, JsonDict, Progress

FILE_NAME: Final = "trajectories.parquet"
REPLAY_TOLERANCE: Final = 1e-9
# Prices and costs of a chunk take about 22 MB at h = 72.
_CHUNK_HORIZONS: Final = 4096


@dataclass(frozen=True)
class Trajectories:
    """n planned horizons, oldest start first.

    Attributes:
        starts: int64 (n,), row of the training dataset at which each horizon begins.
        actions: int8 (n, h), planned actions.
        rewards: float64 (n, h), step rewards of the plan from flat, quote units.
        timestamps: datetime64[us] (n,), bar end of each start, UTC.
    """

    starts: IndexArray
    actions: ActionArray
    rewards: FloatArray
    timestamps: NDArray[np.datetime64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def horizon_bars(self) -> int:
        """Horizon h."""
        return int(self.actions.shape[1])

    def save(self, directory: Path) -> None:
        """Write `trajectories.parquet` into an existing folder."""
        pl.DataFrame(
            {
                "start": self.starts,
                "timestamp": pl.Series(self.timestamps, dtype=pl.Datetime("us")).dt.replace_time_zone("UTC"),
                "actions": pl.Series(self.actions, dtype=pl.Array(pl.Int8, self.horizon_bars)),
                "rewards": pl.Series(self.rewards, dtype=pl.Array(pl.Float64, self.horizon_bars)),
            }
        ).write_parquet(directory / FILE_NAME)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is missing, truncated or has other columns.
        """
        path = directory / FILE_NAME
        frame = read_table(path)
        shape = getattr(frame.schema.get("actions"), "shape", (0,))
        expected = {
            "start": pl.Int64(),
            "timestamp": pl.Datetime("us", "UTC"),
            "actions": pl.Array(pl.Int8, shape),
            "rewards": pl.Array(pl.Float64, shape),
        }
        if dict(frame.schema) != expected or frame.null_count().sum_horizontal().item() > 0:
            raise ArtifactError(f"{path} must hold {expected} without nulls, got {dict(frame.schema)}")
        return cls(
            starts=frame["start"].to_numpy(),
            actions=frame["actions"].to_numpy(),
            rewards=frame["rewards"].to_numpy(),
            timestamps=frame["timestamp"].dt.replace_time_zone(None).to_numpy(),
        )


@dataclass(frozen=True)
class PlanAudit:
    """What `verify_trajectories` counted.

    Attributes:
        trajectories: number of plans checked.
        cut_horizons: starts that are not the start of a whole horizon inside one segment.
        moved_timestamps: starts whose bar end is not the one recorded.
        broken_constraints: plans that trade more often than the constraint allows, or on the last bar.
        wrong_rewards: plans whose recorded rewards are not what replaying the actions earns.
        wrong_values: plans whose discounted rewards are not the value the planner promises.
        largest_error: largest of those differences as a fraction of the notional m p_0.
        long, short, flat: plans by direction.
    """

    trajectories: int
    cut_horizons: int
    moved_timestamps: int
    broken_constraints: int
    wrong_rewards: int
    wrong_values: int
    largest_error: float
    long: int
    short: int
    flat: int

    @property
    def passed(self) -> bool:
        """True where nothing was wrong."""
        faults = (self.cut_horizons, self.moved_timestamps, self.broken_constraints)
        return not any((*faults, self.wrong_rewards, self.wrong_values))

    def as_dict(self) -> JsonDict:
        """The counts and the verdict as JSON."""
        return {**asdict(self), "passed": self.passed}


def build_trajectories(
    dataset: MarketDataset, settings: PlannerSettings, *, seed: int, progress: Progress
) -> Trajectories:
    """Sample horizon starts of the training split and plan each one (Phase I's chunks).

    Starts are uniform over all whole horizons: without replacement where there are enough of them, with
    replacement otherwise; sorted by time. Work goes in chunks, so memory does not grow with their number.

    Args:
        dataset: the training split.
        settings: horizon, number of trajectories, discount and constraint.
        seed: run seed; the starts come from its stream `planner/starts`.
        progress: told the trajectories planned so far.

    Raises:
        SettingsError: the dataset was built for another horizon.
        MarketDataError: no whole horizon fits into the dataset.
    """
    _require_same_horizon(dataset, settings)
    choices = dataset.horizon_starts()
    if len(choices) == 0:
        needed = dataset.horizon_bars + dataset.execution_delay_bars + 1
        raise MarketDataError(
            f"{dataset.pair}: a horizon needs {needed} rows without a gap, none of the {len(dataset)} rows starts one"
        )
    count = settings.num_trajectories
    generator = numpy_generator(seed, "planner", "starts")
    starts = np.sort(generator.choice(choices, size=count, replace=count > len(choices)))
    actions = np.empty((count, dataset.horizon_bars), dtype=np.int8)
    rewards = np.empty((count, dataset.horizon_bars))
    progress.start("planning demonstrations", count)
    for chunk, mark, costs in _price_chunks(dataset, starts):
        actions[chunk] = _plan(mark, costs, dataset, settings).actions
        rewards[chunk] = horizon_rewards(actions[chunk], mark, costs, max_position=dataset.max_position)
        progress.advance(chunk.stop)
    progress.finish()
    return Trajectories(starts, actions, rewards, dataset.timestamps[starts])


def verify_trajectories(trajectories: Trajectories, dataset: MarketDataset, settings: PlannerSettings) -> PlanAudit:
    """Check that every plan obeys its constraint and that replaying it earns the planned value.

    Values agree where they differ by at most 1e-9 of the notional m p_0.

    Args:
        trajectories: what `build_trajectories` made, perhaps read back from disk.
        dataset: the dataset they were made from.
        settings: the settings they were made with.

    Raises:
        SettingsError: the horizons of the three do not agree.
        ValueError: a start outside the dataset or an action outside 0..2.
    """
    _require_same_horizon(dataset, settings)
    if trajectories.horizon_bars != settings.horizon_bars:
        raise SettingsError(
            f"trajectories have horizon {trajectories.horizon_bars}, planner.horizon_bars is {settings.horizon_bars}"
        )
    starts = trajectories.starts
    reach = dataset.horizon_bars + dataset.execution_delay_bars
    if len(starts) and not (starts.min() >= 0 and starts.max() + reach < len(dataset)):
        raise ValueError(f"starts must lie in 0..{len(dataset) - reach - 1}, got {starts.min()}..{starts.max()}")
    discount = settings.gamma ** np.arange(settings.horizon_bars)
    reward_error, value_error = np.empty(len(starts)), np.empty(len(starts))
    for chunk, mark, costs in _price_chunks(dataset, starts):
        replayed = horizon_rewards(trajectories.actions[chunk], mark, costs, max_position=dataset.max_position)
        planned = _plan(mark, costs, dataset, settings).values
        notional = dataset.max_position * mark[:, 0]
        reward_error[chunk] = np.abs(replayed - trajectories.rewards[chunk]).max(axis=1) / notional
        value_error[chunk] = np.abs(replayed @ discount - planned) / notional
    obeyed = obeys_constraint(trajectories.actions, settings.trade_constraint)
    long, short = ((trajectories.actions == side).any(axis=1) for side in (LONG, SHORT))
    return PlanAudit(
        trajectories=len(starts),
        cut_horizons=int((~np.isin(starts, dataset.horizon_starts())).sum()),
        moved_timestamps=int((dataset.timestamps[starts] != trajectories.timestamps).sum()),
        broken_constraints=int((~obeyed).sum()),
        # Negated, so that a NaN counts as wrong.
        wrong_rewards=int((~(reward_error <= REPLAY_TOLERANCE)).sum()),
        wrong_values=int((~(value_error <= REPLAY_TOLERANCE)).sum()),
        largest_error=float(np.concatenate([reward_error, value_error]).max(initial=0.0)),
        long=int(long.sum()),
        short=int(short.sum()),
        flat=int((~long & ~short).sum()),
    )


def _plan(mark: FloatArray, costs: FloatArray, dataset: MarketDataset, settings: PlannerSettings) -> SingleTradePlans:
    return best_plans(
        mark,
        costs,
        max_position=dataset.max_position,
        gamma=settings.gamma,
        trade_constraint=settings.trade_constraint,
    )


def _price_chunks(dataset: MarketDataset, starts: IndexArray) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
    """Slices of `starts` with their mark prices (B, h + 1) and costs (B, h, 3, 3)."""
    # Plans need prices only; a dataset without features copies no states.
    prices = replace(dataset, states=dataset.states[:, :0])
    for first in range(0, len(starts), _CHUNK_HORIZONS):
        chunk = slice(first, min(first + _CHUNK_HORIZONS, len(starts)))
        batch = prices.horizons(starts[chunk])
        yield chunk, batch.mark, batch.costs


def _require_same_horizon(dataset: MarketDataset, settings: PlannerSettings) -> None:
    if dataset.horizon_bars != settings.horizon_bars:
        raise SettingsError(
            f"the dataset was built for horizon_bars={dataset.horizon_bars}, "
            f"planner.horizon_bars is {settings.horizon_bars}"
        )
