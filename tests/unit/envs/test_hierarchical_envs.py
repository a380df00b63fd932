from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_for_sb3

from archetype_dagster.codebook import Codebook
from archetype_dagster.envs import (
    ArchetypeSelectionEnv,
    ArchetypeSelectionVectorEnv,
    RefinementEnv,
    RefinementVectorEnv,
)
from archetype_dagster.envs.embedded import embedded_codebook, embedded_selector
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.refinement.table import build_refinement_table
from archetype_dagster.selection.returns_table import ReturnsTable, archetype_returns
from archetype_dagster.settings import RefinementSettings
from archetype_dagster.types import NoProgress

Split = Callable[..., MarketDataset]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["ArchetypeSelectionEnv", "RefinementEnv"])
def test_both_checkers_find_nothing_in_what_is_made_from_nothing(name: str) -> None:
    env = gym.make(f"archetype/{name}-v0").unwrapped
    check_env(env, skip_render_check=True)
    check_for_sb3(env)


@pytest.mark.parametrize("delay", [0, 1])
def test_every_horizon_earns_what_the_returns_table_says(
    learnable_split: Split, random_codebook: Callable[..., Codebook], delay: int
) -> None:
    dataset, codebook = learnable_split(delay=delay), random_codebook()
    starts = dataset.horizon_starts(1)
    table = archetype_returns(dataset.horizons(starts), codebook, max_position=dataset.max_position)
    place = {int(row): index for index, row in enumerate(starts)}
    env = ArchetypeSelectionEnv(dataset, codebook, episode_horizons=30)
    rng = np.random.default_rng(0)
    seen = set()
    for seed in range(6):
        observation, info = env.reset(seed=seed)
        truncated, steps = False, 0
        while not truncated:
            row, code = info["row"], int(rng.integers(4))
            np.testing.assert_array_equal(observation, dataset.states[row])
            observation, reward, terminated, truncated, info = env.step(code)
            assert reward == pytest.approx(table[place[row], code], abs=1e-9)
            assert info["row"] == row + dataset.horizon_bars
            assert not terminated
            seen.add((code, reward > 0))
            steps += 1
        assert steps == 30 or info["row"] not in place
    assert {won for _, won in seen} == {False, True}


@pytest.mark.parametrize(("override", "delay"), [("step", 0), ("hold", 0), ("hold", 1)])
def test_every_override_earns_what_the_refinement_table_says(
    learnable_split: Split, random_codebook: Callable[..., Codebook], override: str, delay: int
) -> None:
    dataset, codebook = learnable_split(delay=delay), random_codebook()
    selector = embedded_selector(codebook)
    settings = RefinementSettings(override=override, beta_1=0.3)
    starts = dataset.horizon_starts(5)
    table = build_refinement_table(dataset, starts, codebook, selector, settings, beta_1=0.3, progress=NoProgress())
    context = table.context(np.arange(len(starts)))
    env = RefinementEnv(dataset, codebook, selector, settings=settings)
    rng = np.random.default_rng(1)
    overridden = 0
    for index, start in enumerate(starts):
        observation, info = env.reset(options={"start": int(start)})
        for step in range(dataset.horizon_bars):
            np.testing.assert_array_equal(observation[:4], dataset.states[start + step])
            np.testing.assert_array_equal(observation[4:], context[index, step])
            legal = table.legal[index, step]
            assert info["action_mask"].tolist() == [legal[0], True, legal[1]]
            action = int(rng.choice(3, p=[0.15, 0.7, 0.15]))
            acts = action != 1 and legal[action // 2]
            observation, reward, terminated, truncated, info = env.step(action)
            expected = table.rewards[index, step, action // 2] if acts else 0.0
            assert reward == pytest.approx(expected, abs=1e-5)
            assert terminated == (acts or step == dataset.horizon_bars - 1)
            assert not truncated
            if terminated:
                gain = table.gains[index, step, action // 2] if acts else 0.0
                assert info["return"] - info["base_return"] == pytest.approx(gain, abs=1e-5)
                assert info["base_return"] == pytest.approx(table.base_return[index], abs=1e-9)
                overridden += acts
                break
    assert 10 < overridden < len(starts)


def test_the_seed_decides_starts_and_what_is_no_action_is_refused(learnable_split: Split) -> None:
    dataset = learnable_split()
    codebook = embedded_codebook(dataset)
    for kind in (ArchetypeSelectionEnv, RefinementEnv):
        rows = [kind(dataset, codebook, seed=seed).reset()[1]["row"] for seed in range(12)]
        assert rows == [kind(dataset, codebook).reset(seed=seed)[1]["row"] for seed in range(12)]
        assert len(set(rows)) > 6
        env = kind(dataset, codebook, seed=0)
        env.reset()
        for wrong, message in ((-1, "0.."), (99, "got 99"), (np.nan, "one integer"), (np.array([1, 1]), "one integer")):
            with pytest.raises(ValueError, match=message):
                env.step(wrong)
        for options, message in (({"start": 239}, "start=239"), ({"row": 0}, r"got \['row'\]")):
            with pytest.raises(ValueError, match=message):
                env.reset(options=options)
    with pytest.raises(ValueError, match="episode_horizons=0"):
        ArchetypeSelectionEnv(dataset, codebook, episode_horizons=0)


def test_an_override_is_paid_once_and_no_step_follows_an_end(learnable_split: Split) -> None:
    dataset = learnable_split()
    codebook = embedded_codebook(dataset)
    selection, refinement = (
        ArchetypeSelectionEnv(dataset, codebook, episode_horizons=1),
        RefinementEnv(dataset, codebook),
    )
    for env in (selection, refinement):
        with pytest.raises(gym.error.ResetNeeded, match="none has begun"):
            env.step(1)
        env.reset(seed=0)
    assert selection.step(1)[3]
    terminated = False
    while not terminated:
        legal = refinement.action_masks()
        terminated = refinement.step(2 if legal[2] else 0 if legal[0] else 1)[2]
    for env in (selection, refinement):
        with pytest.raises(gym.error.ResetNeeded, match="is over"):
            env.step(1)


def check_copies(many: gym.vector.VectorEnv, singles: list[gym.Env], actions: np.ndarray, start: np.ndarray) -> None:
    """Every copy answers what a single environment of its own answers."""
    seen, info = many.reset(seed=0, options={"start": start})
    for copy, single in enumerate(singles):
        np.testing.assert_array_equal(single.reset(options={"start": int(start[copy])})[0], seen[copy])
    ends = 0
    for taken in actions:
        seen, rewards, terminated, truncated, info = many.step(taken)
        for copy, single in enumerate(singles):
            observation, reward, *ended, told = single.step(int(taken[copy]))
            assert reward == pytest.approx(rewards[copy], abs=1e-5)
            assert ended == [terminated[copy], truncated[copy]]
            if any(ended):
                np.testing.assert_array_equal(info["final_obs"][copy], observation)
                assert info["_final_obs"][copy]
                row = int(info["row"][copy])
                observation, told = single.reset(options={"start": row})
                ends += 1
            np.testing.assert_array_equal(observation, seen[copy])
            if "action_mask" in told:
                np.testing.assert_array_equal(told["action_mask"], info["action_mask"][copy])
    assert ends > 10
    for wrong in (np.zeros(2, dtype=int), np.zeros(len(singles)), np.full(len(singles), 9)):
        with pytest.raises(ValueError, match="actions must"):
            many.step(wrong)
    with pytest.raises(ValueError, match="start=399"):
        many.reset(options={"start": 399})


def test_copies_on_the_tables_are_the_single_environments(
    learnable_split: Split, random_codebook: Callable[..., Codebook]
) -> None:
    dataset, codebook = learnable_split(), random_codebook()
    starts = dataset.horizon_starts(1)
    returns = archetype_returns(dataset.horizons(starts), codebook, max_position=dataset.max_position)
    table = ReturnsTable(starts, dataset.timestamps[starts], returns, np.zeros(len(starts), dtype=np.int64))
    rng = np.random.default_rng(0)
    where = starts[[0, 50, 100, 228]]
    check_copies(
        ArchetypeSelectionVectorEnv(4, dataset, table, episode_horizons=4),
        [ArchetypeSelectionEnv(dataset, codebook, episode_horizons=4) for _ in range(4)],
        rng.integers(4, size=(20, 4)),
        where,
    )
    selector, settings = embedded_selector(codebook), RefinementSettings(beta_1=0.3)
    refined = build_refinement_table(dataset, starts, codebook, selector, settings, beta_1=0.3, progress=NoProgress())
    check_copies(
        RefinementVectorEnv(4, dataset, refined),
        [RefinementEnv(dataset, codebook, selector, settings=settings) for _ in range(4)],
        rng.choice(3, p=[0.15, 0.7, 0.15], size=(40, 4)),
        where,
    )
