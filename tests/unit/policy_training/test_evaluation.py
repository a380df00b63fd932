from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium.wrappers import TransformReward

from archetype_dagster.envs import expected_shortfall_bps, twap_left
from archetype_dagster.errors import MarketDataError
from archetype_dagster.policy_training import TRAINED, Tasks, evaluate
from archetype_dagster.policy_training.evaluation import _episodes_that_overlap
from archetype_dagster.policy_training.play import built_in_decisions, even_starts, play, random_decisions
from archetype_dagster.policy_training.tasks import fit_scaler, random_observations, scaled, training_copies
from archetype_dagster.settings.policy_specs import PolicySpec

Brief = Callable[..., PolicySpec]


def full(value: float) -> Callable[..., np.ndarray]:
    """Decides always the same."""
    return lambda observations, envs: np.full((len(observations), *envs[0].action_space.shape), value)


def played(spec: PolicySpec, decide: Callable[..., np.ndarray] | str) -> pl.DataFrame:
    env = Tasks.of(spec).evaluation
    starts = even_starts(env, spec.environment, spec.evaluation.episodes)
    return play(built_in_decisions(decide) if isinstance(decide, str) else decide, env, spec, starts).episodes


def test_windows_are_cut_where_the_specification_says(brief: Brief) -> None:
    spec = brief("transformer_stock_trading")
    tasks = Tasks.of(spec)
    for name in ("train", "validation", "evaluation"):
        times = getattr(tasks, name).panel.timestamps
        low, high = (np.datetime64(moment.replace(tzinfo=None), "us") for moment in spec.windows.window(name))
        assert times[0] == low
        assert times[-1] == high - np.timedelta64(1, "h")
    with pytest.raises(MarketDataError, match="no row ends from 2030"):
        Tasks.of(brief("transformer_stock_trading", {"windows.evaluation_start": "2030-01-01T00:00:00Z"} | _LATE))


_LATE = {"windows.evaluation_end": "2030-02-01T00:00:00Z"}


def test_evaluation_plays_the_stated_number_of_whole_episodes_over_the_whole_window(brief: Brief) -> None:
    spec = brief("patchtst_execution", {"evaluation.episodes": 7})
    env = Tasks.of(spec).evaluation
    found = evaluate(full(0.0), env, spec)
    began = found.episodes.filter(policy=TRAINED)["began"].dt.epoch("us").to_numpy().astype("datetime64[us]")
    assert len(began) == 7
    assert began[0] == env.panel.timestamps[256 + 19]
    assert began[-1] == env.panel.timestamps[-21]
    assert set(found.episodes["bars"]) == {20}
    assert set(found.episodes.filter(policy="twap")["ended"]) == {"executed"}
    # Half the way of an action is the pace of TWAP, on the same draws.
    twap = found.episodes.filter(policy="twap")["reward"].to_numpy()
    np.testing.assert_array_equal(found.episodes.filter(policy=TRAINED)["reward"].to_numpy(), twap)
    assert found.summary["twap"]["lead"] == {"low": 0.0, "estimate": 0.0, "high": 0.0}
    assert found.summary["twap"]["ahead"] == 0.0
    assert found.decisions.columns == ["episode", "timestamp", "action_0", "reward"]
    assert found.decisions.height == 7 * 20


def test_what_an_episode_came_to_is_what_the_environment_told(brief: Brief) -> None:
    spec = brief("patchtst_execution", {"universe.volatility_bps": 1e-9})
    task = spec.environment
    found = played(spec, "twap").row(0, named=True)
    expected = expected_shortfall_bps(
        twap_left(task.horizon_bars),
        half_spread_bps=task.half_spread_bps,
        temporary_impact_bps=task.temporary_impact_bps,
        permanent_impact_bps=task.permanent_impact_bps,
    )
    assert found["shortfall_bps"] == pytest.approx(expected, rel=1e-6)
    assert found["reward"] == pytest.approx(-found["shortfall_bps"] - found["risk_penalty_bps"], rel=1e-9)
    stocks = played(brief("transformer_stock_trading"), "equal_weight").row(0, named=True)
    assert stocks["reward"] == pytest.approx(np.log1p(stocks["total_return"]), rel=1e-9)
    assert 0 < stocks["cost"] == pytest.approx(0.0005 * stocks["turnover"], rel=1e-9)
    assert 0 <= stocks["max_drawdown"] < 1
    flat = played(brief("transformer_stock_trading"), "flat").row(0, named=True)
    assert flat["reward"] == flat["turnover"] == flat["max_drawdown"] == 0
    quotes = played(brief("autoencoder_marketmaking"), "avellaneda_stoikov").row(0, named=True)
    assert quotes["fills"] > 0
    assert quotes["largest_inventory"] <= 10


def test_avellaneda_stoikov_beats_random_quotes_and_equal_draws_meet_equal_quotes(brief: Brief) -> None:
    spec = brief("autoencoder_marketmaking", {"environment.episode_bars": 200, "evaluation.episodes": 6})
    found = evaluate(full(0.0), Tasks.of(spec).evaluation, spec)
    assert found.summary["avellaneda_stoikov"]["reward"] > found.summary["random"]["reward"]
    again = evaluate(full(0.0), Tasks.of(spec).evaluation, spec)
    assert again.episodes.equals(found.episodes)
    assert again.summary == found.summary
    other = spec.checked(spec.model_dump(), {"seed": 5}, "spec")
    assert not evaluate(full(0.0), Tasks.of(other).evaluation, other).episodes.equals(found.episodes)


@pytest.mark.parametrize(
    ("name", "changes", "action", "ended"),
    [
        ("transformer_stock_trading", {"environment.max_drawdown": 0.001}, 1.0, "drawdown"),
        ("transformer_stock_trading", {"environment.margin_floor": 1.5}, 1.0, "margin"),
        ("recurrent_portfolio", {"environment.max_drawdown": 0.001}, 1.0, "drawdown"),
        (
            "autoencoder_marketmaking",
            {"environment.inventory_limit": 1, "environment.episode_bars": 200},
            -1.0,
            "inventory",
        ),
    ],
)
def test_limits_of_a_specification_end_its_episodes(
    name: str, changes: dict[str, Any], action: float, ended: str, brief: Brief
) -> None:
    loose = {"environment.max_drawdown": None} if "max_drawdown" in str(changes) else {}
    assert set(played(brief(name, loose), full(action))["ended"]) == {"time"}
    assert ended in set(played(brief(name, changes), full(action))["ended"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("transformer_stock_trading", {"environment.cost_rate": 0.01}),
        ("recurrent_portfolio", {"environment.cost_rate": 0.01}),
        ("autoencoder_marketmaking", {"environment.maker_fee_bps": 5.0}),
        ("patchtst_execution", {"environment.half_spread_bps": 50.0}),
    ],
)
def test_costs_of_a_specification_are_paid(name: str, change: dict[str, float], brief: Brief) -> None:
    cheap, dear = (played(brief(name, changes), full(-0.5))["reward"].to_numpy() for changes in ({}, change))
    assert (dear < cheap).all()


def test_scaling_is_measured_on_the_training_window_and_undone_by_nothing(brief: Brief) -> None:
    spec = brief("patchtst_execution", {"scaling.steps": 400})
    tasks = Tasks.of(spec)
    scaler = fit_scaler(tasks.train, spec.scaling, seed=0)
    assert scaler is not None
    assert scaler.mean.shape == (len(tasks.train.bar_features),)
    seen = random_observations(tasks.train, 400, seed=0)
    bars = scaled(scaler, seen).reshape(400, 256, -1)[:, -1]
    np.testing.assert_allclose(bars.mean(axis=0), 0, atol=0.05)
    assert fit_scaler(tasks.train, None, seed=0) is None
    np.testing.assert_array_equal(scaled(None, seen), seen)
    tight = replace(scaler, clip_sigma=0.5)
    copy = training_copies(tasks.train, spec, tight)[0]
    assert isinstance(copy, TransformReward)
    observation, _ = copy.reset(seed=0)
    assert np.abs(observation).max() == 0.5
    assert copy.observation_space.contains(observation)


def test_training_sees_rewards_in_its_own_scale(brief: Brief) -> None:
    rewards = []
    for scale in (1.0, 50.0):
        spec = brief("autoencoder_marketmaking", {"reward_scale": scale})
        copy = training_copies(Tasks.of(spec).train, spec, None)[1]
        copy.reset(seed=0)
        rewards.append([copy.step(np.zeros(2))[1] for _ in range(20)])
    np.testing.assert_allclose(rewards[1], 50 * np.array(rewards[0]), rtol=1e-12)
    assert np.any(rewards[0])


def test_copies_have_episodes_of_their_own(brief: Brief) -> None:
    spec = brief("autoencoder_marketmaking")
    train = Tasks.of(spec).train
    one, other = training_copies(train, spec, None)
    first, _ = one.reset(seed=1)
    other.reset(seed=2)
    for _ in range(5):
        other.step(np.zeros(2))
    assert one.unwrapped._steps == 0
    np.testing.assert_array_equal(one.reset(seed=1)[0], first)
    assert random_decisions(train, 0)(np.zeros((3, 4), np.float32), []).shape == (3, 2)


@pytest.mark.parametrize(
    ("starts", "length", "block"),
    [([0, 100, 200], 50, 1.0), ([0, 10, 20], 50, 5.0), ([7], 50, 1.0), ([5, 5], 50, 50.0)],
)
def test_episodes_that_share_bars_are_resampled_together(starts: list[int], length: int, block: float) -> None:
    assert _episodes_that_overlap(np.array(starts), length) == block
