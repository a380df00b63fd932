"""The demonstrations: where they start, that they survive the disk, and that the audit finds faults."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from archetype_dagster.errors import ArtifactError, MarketDataError, SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import Trajectories, build_trajectories, horizon_rewards, verify_trajectories
from archetype_dagster.settings import PlannerSettings
from archetype_dagster.types import NoProgress


class Recorder(NoProgress):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.total = 0
        self.completed: list[int] = []

    def start(self, description: str, total: int) -> None:
        self.total = total

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.completed.append(completed)


def make_dataset(
    lengths: tuple[int, ...] = (60, 12, 90), *, horizon_bars: int = 10, delay: int = 0, num_features: int = 3
) -> MarketDataset:
    rng = np.random.default_rng(8)
    rows = sum(lengths)
    segment = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2022-01-01", "us") + ((np.arange(rows) + 9 * segment) * 10).astype("timedelta64[m]"),
        states=rng.normal(size=(rows, num_features)).astype(np.float32),
        mark=2000 * np.exp(rng.normal(0, 0.002, rows).cumsum()),
        costs=rng.exponential(40, (rows, 3, 3)) * (1 - np.eye(3)),
        segment=segment,
        max_position=100.0,
        horizon_bars=horizon_bars,
        execution_delay_bars=delay,
    )


def planner(count: int, **changes: object) -> PlannerSettings:
    return PlannerSettings.model_validate({"horizon_bars": 10, "num_trajectories": count, **changes})


@pytest.mark.parametrize("constraint", ["single_change", "round_trip"])
@pytest.mark.parametrize("gamma", [1.0, 0.99])
@pytest.mark.parametrize("delay", [0, 1])
def test_built_trajectories_pass_their_audit(constraint: str, gamma: float, delay: int) -> None:
    dataset = make_dataset(delay=delay)
    settings = planner(90, gamma=gamma, trade_constraint=constraint)
    trajectories = build_trajectories(dataset, settings, seed=3, progress=NoProgress())
    audit = verify_trajectories(trajectories, dataset, settings)
    assert audit.passed, audit
    assert audit.trajectories == audit.long + audit.short + audit.flat == 90
    assert audit.long > 0
    assert audit.short > 0


def test_starts_are_sorted_distinct_and_whole_while_there_are_enough() -> None:
    dataset = make_dataset()
    whole = dataset.horizon_starts()
    drawn = build_trajectories(dataset, planner(60), seed=0, progress=NoProgress())
    assert (np.diff(drawn.starts) > 0).all()
    assert np.isin(drawn.starts, whole).all()
    assert np.array_equal(drawn.timestamps, dataset.timestamps[drawn.starts])
    every = build_trajectories(dataset, planner(len(whole)), seed=0, progress=NoProgress())
    assert np.array_equal(every.starts, whole)
    more = build_trajectories(dataset, planner(len(whole) + 200), seed=0, progress=NoProgress())
    assert np.isin(more.starts, whole).all()
    assert (np.diff(more.starts) >= 0).all()


def test_the_execution_delay_moves_the_prices_and_not_the_start() -> None:
    dataset = make_dataset(delay=2)
    drawn = build_trajectories(dataset, planner(20), seed=0, progress=NoProgress())
    for start, actions, rewards in zip(drawn.starts, drawn.actions, drawn.rewards, strict=True):
        mark, costs = dataset.mark[start + 2 : start + 13], dataset.costs[start + 2 : start + 12]
        assert np.array_equal(rewards, horizon_rewards(actions, mark, costs, max_position=100.0))


def test_the_seed_alone_decides_the_draw() -> None:
    dataset = make_dataset()
    first, again, other = (
        build_trajectories(dataset, planner(40), seed=seed, progress=NoProgress()) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.starts, again.starts)
    assert np.array_equal(first.rewards, again.rewards)
    assert not np.array_equal(first.starts, other.starts)


def test_saving_and_loading_keeps_every_bit_and_the_same_draw_gives_the_same_bytes(tmp_path: Path) -> None:
    trajectories = build_trajectories(make_dataset(), planner(30), seed=1, progress=NoProgress())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trajectories.save(tmp_path / name)
    loaded = Trajectories.load(tmp_path / "a")
    for name in ("starts", "actions", "rewards", "timestamps"):
        before, after = getattr(trajectories, name), getattr(loaded, name)
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)
    assert (tmp_path / "a/trajectories.parquet").read_bytes() == (tmp_path / "b/trajectories.parquet").read_bytes()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"trajectories\.parquet does not exist"):
        Trajectories.load(tmp_path)
    trajectories = build_trajectories(make_dataset(), planner(30), seed=1, progress=NoProgress())
    trajectories.save(tmp_path)
    path = tmp_path / "trajectories.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="truncated or not a Parquet file"):
        Trajectories.load(tmp_path)
    pl.DataFrame({"start": trajectories.starts}).write_parquet(path)
    with pytest.raises(ArtifactError, match="must hold"):
        Trajectories.load(tmp_path)


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("trade on the last bar", "broken_constraints"),
        ("two changes", "broken_constraints"),
        ("reward off by a millionth of the notional", "wrong_rewards"),
        ("reward missing", "wrong_rewards"),
        ("a worse plan", "wrong_values"),
        ("a start before a gap", "cut_horizons"),
        ("a shifted timestamp", "moved_timestamps"),
    ],
)
def test_the_audit_finds_a_planted_fault(fault: str, counted: str) -> None:
    dataset, settings = make_dataset(), planner(60)
    good = build_trajectories(dataset, settings, seed=1, progress=NoProgress())
    actions, rewards = good.actions.copy(), good.rewards.copy()
    starts, timestamps = good.starts.copy(), good.timestamps.copy()
    match fault:
        case "trade on the last bar":
            actions[5, -1] = (actions[5, -1] + 1) % 3
        case "two changes":
            actions[5] = [1, 2, 2, 0, 0, 0, 0, 0, 0, 0]
        case "reward off by a millionth of the notional":
            rewards[5, 3] += 1e-6 * 100 * 2000
        case "reward missing":
            rewards[5, 3] = np.nan
        case "a worse plan":
            actions[5] = np.where(actions[5] == 1, 1, 2 - actions[5]) if (actions[5] != 1).any() else 2
        case "a start before a gap":
            starts[5] = 55
        case "a shifted timestamp":
            timestamps[5] += np.timedelta64(1, "us")
    bad = Trajectories(starts, actions, rewards, timestamps)
    audit = verify_trajectories(bad, dataset, settings)
    assert audit.as_dict()[counted] == 1
    assert not audit.passed
    assert verify_trajectories(good, dataset, settings).passed


def test_progress_counts_every_trajectory_once() -> None:
    recorder = Recorder()
    build_trajectories(make_dataset(), planner(5000), seed=1, progress=recorder)
    assert recorder.total == 5000
    assert recorder.completed == [4096, 5000]


def test_memory_grows_with_the_plans_and_not_with_the_market_they_are_cut_from() -> None:
    dataset = make_dataset((40_000,), horizon_bars=72, num_features=45)
    settings = planner(12_000, horizon_bars=72)
    tracemalloc.start()
    trajectories = build_trajectories(dataset, settings, seed=0, progress=NoProgress())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = trajectories.actions.nbytes + trajectories.rewards.nbytes
    all_costs_at_once = len(trajectories) * 72 * 9 * 8
    assert peak < kept + all_costs_at_once


def test_wrong_input_names_the_rule() -> None:
    dataset = make_dataset()
    with pytest.raises(SettingsError, match=r"built for horizon_bars=10, planner\.horizon_bars is 12"):
        build_trajectories(dataset, planner(5, horizon_bars=12), seed=0, progress=NoProgress())
    with pytest.raises(MarketDataError, match="a horizon needs 11 rows without a gap, none of the 20 rows"):
        build_trajectories(make_dataset((10, 10)), planner(5), seed=0, progress=NoProgress())
    good = build_trajectories(dataset, planner(5), seed=0, progress=NoProgress())
    with pytest.raises(ValueError, match=r"starts must lie in 0\.\.151, got 0\.\."):
        verify_trajectories(replace(good, starts=np.array([0, 1, 2, 3, 160])), dataset, planner(5))
