from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from archetype_dagster.baselines.earnhft import EarnHft, fit_earnhft, pick_pool
from archetype_dagster.baselines.macrohft import MacroHft, fit_macrohft
from archetype_dagster.baselines.strategy import mean_reward
from archetype_dagster.baselines.transitions import optimal_action_values
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import reward_table
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import BaselineSettings, EarnHftSettings, MacroHftSettings
from archetype_dagster.types import FLAT, NoProgress

Split = Callable[..., MarketDataset]
Fitted = EarnHft | MacroHft

COMMON: dict[str, Any] = {"chunk_bars": 12, "batch_size": 48, "target_rate": 0.05}
SMALL = BaselineSettings(
    total_steps=4_000,
    hidden_sizes=(16, 16),
    learning_rate=0.003,
    evaluations=4,
    gamma=0.9,
    earnhft=EarnHftSettings(**COMMON, trend_preferences=(-1.0, 1.0), num_trends=3, decision_bars=4),
    macrohft=MacroHftSettings(**COMMON, num_labels=2, context_bars=8, memory_size=60),
)
METHODS: dict[str, Callable[..., Fitted]] = {"earnhft": fit_earnhft, "macrohft": fit_macrohft}
METHOD = pytest.mark.parametrize("method", list(METHODS))


def fit(
    method: str,
    split: Split,
    settings: BaselineSettings = SMALL,
    *,
    seed: int = 0,
    resume: ResumePoint | None = None,
    progress: NoProgress | None = None,
    delay: int = 0,
) -> Fitted:
    return METHODS[method](
        split(delay=delay),
        split(seed=1, delay=delay),
        settings,
        seed=seed,
        device=torch.device("cpu"),
        resume=resume or ResumePoint(None, ""),
        progress=progress or NoProgress(),
    )


def weights(strategy: Fitted) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in strategy.network.state_dict().items()}


fit_once = cache(fit)


@pytest.fixture(params=list(METHODS))
def fitted(request: pytest.FixtureRequest, learnable_split: Split) -> Fitted:
    return fit_once(request.param, learnable_split)


def test_a_planted_edge_is_found_out_of_sample(fitted: Fitted, learnable_split: Split) -> None:
    unseen = learnable_split(seed=5)
    table = reward_table(unseen)
    best = optimal_action_values(table.percent, table.usable, gamma=1.0)
    first = np.searchsorted(unseen.segment, [0, 1])
    perfect = best[first, FLAT].max(axis=1).sum() / table.usable.sum()
    assert mean_reward(fitted.actions(unseen), unseen, table) > 0.5 * perfect


def test_what_follows_changes_no_action_before_it(fitted: Fitted, learnable_split: Split) -> None:
    dataset = learnable_split(seed=6, segments=(50, 70))
    whole = fitted.actions(dataset)
    rng = np.random.default_rng(0)
    for last in (0, 23, 49, 50, 83):
        later = np.arange(len(dataset)) > last
        noise = np.where(later, np.exp(rng.normal(size=len(dataset))), 1.0)
        changed = replace(
            dataset,
            states=np.where(later[:, None], rng.normal(size=dataset.states.shape), dataset.states).astype(np.float32),
            mark=dataset.mark * noise,
            costs=dataset.costs * noise[:, None, None],
        )
        np.testing.assert_array_equal(fitted.actions(changed)[: last + 1], whole[: last + 1])
        np.testing.assert_array_equal(fitted.actions(dataset.rows(slice(0, last + 1))), whole[: last + 1])


def test_a_segment_is_traded_as_if_it_were_alone(fitted: Fitted, learnable_split: Split) -> None:
    dataset = learnable_split(seed=7, segments=(45, 31))
    alone = fitted.actions(dataset.rows(dataset.segment == 1))
    np.testing.assert_array_equal(fitted.actions(dataset)[45:], alone)
    assert alone.dtype == np.int8


def test_a_saved_strategy_trades_the_same(fitted: Fitted, learnable_split: Split, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    loaded = type(fitted).load(tmp_path)
    unseen = learnable_split(seed=8)
    np.testing.assert_array_equal(loaded.actions(unseen), fitted.actions(unseen))
    assert loaded.name == fitted.name
    assert loaded.history.equals(fitted.history)
    assert {path.name for path in tmp_path.iterdir()} == {f"{fitted.name}.safetensors", "history.parquet"}
    with pytest.raises(ArtifactError):
        (MacroHft if isinstance(fitted, EarnHft) else EarnHft).load(tmp_path)


def test_budget_is_shared_by_the_stages(fitted: Fitted) -> None:
    spent = fitted.history.group_by("stage").agg(pl.col("steps").max())["steps"]
    assert SMALL.total_steps <= spent.sum() < SMALL.total_steps + len(spent) * COMMON["batch_size"]


class StopAfter(NoProgress):
    """Raises after some validations, like a user who interrupts."""

    def __init__(self, validations: int) -> None:
        self.left = validations

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


SHORT = SMALL.model_copy(update={"total_steps": 1_200})


@METHOD
def test_seeds_fix_every_weight_and_so_does_going_on_after_an_interruption(
    method: str, learnable_split: Split, tmp_path: Path
) -> None:
    whole = fit(method, learnable_split, SHORT)
    stages = whole.history["stage"].n_unique()
    resume = ResumePoint(tmp_path / "resume.safetensors", "key")
    # In the first stage, in a later one, and in the last: each call goes on where the one before was stopped.
    for validations in (2, 4, 3 * stages - 7):
        with pytest.raises(KeyboardInterrupt):
            fit(method, learnable_split, SHORT, resume=resume, progress=StopAfter(validations))
    resumed = fit(method, learnable_split, SHORT, resume=resume)
    assert weights(resumed) == weights(whole)
    assert resumed.history.equals(whole.history)
    assert weights(fit(method, learnable_split, SHORT, seed=1)) != weights(whole)


@METHOD
def test_a_delayed_market_is_learned_and_traded(method: str, learnable_split: Split) -> None:
    unseen = learnable_split(seed=5, delay=1)
    strategy = fit(method, learnable_split, delay=1)
    assert mean_reward(strategy.actions(unseen), unseen, reward_table(unseen)) > 0.05


def test_the_pool_takes_the_best_agent_per_trend_and_start_and_the_earlier_of_equals() -> None:
    labels = np.array([0, 0, 1])
    earned = np.zeros((3, 3, 3))
    earned[2, :2, 0] = [4.0, -1.0]
    earned[1, :2, 0] = [1.0, 1.0]
    earned[1, 2, 2] = 5.0
    np.testing.assert_array_equal(pick_pool(earned, labels, 2), [[2, 0, 0], [0, 0, 1]])


def test_a_validation_split_too_short_to_label_is_refused(learnable_split: Split) -> None:
    with pytest.raises(MarketDataError, match="at least 3 chunks"):
        fit_earnhft(
            learnable_split(),
            learnable_split(segments=(30,)),
            SMALL,
            seed=0,
            device=torch.device("cpu"),
            resume=ResumePoint(None, ""),
            progress=NoProgress(),
        )


def test_more_neighbours_than_memories_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_neighbours must be at most memory_size=3, got memory_neighbours=5"):
        MacroHftSettings(memory_size=3)
