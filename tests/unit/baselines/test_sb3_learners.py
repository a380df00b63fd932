import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from archetype_dagster.baselines import fit_baseline, mean_reward
from archetype_dagster.baselines.networks import CascadedLstm, LearnedStrategy, PolicyNetwork, greedy_actions
from archetype_dagster.baselines.sb3_agents import PerturbedTargetDQN, greedy_half, make_agent
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import BatchedTradingEnv, LookbackWindows, reward_table
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import NoProgress

CPU = torch.device("cpu")
SMALL = BaselineSettings.model_validate(
    {
        "total_steps": 5120,
        "num_envs": 32,
        "episode_bars": 50,
        "gamma": 0.5,
        "learning_rate": 0.003,
        "hidden_sizes": [16],
        "evaluations": 4,
        "dqn": {"buffer_steps": 8000, "learning_starts": 640, "batch_size": 64, "target_interval_steps": 640},
        "rollout": {"bars": 16, "batch_size": 128},
        "recurrent": {"lookback_bars": 4, "hidden_size": 8},
    }
)


def edge_market(*, seed: int, shuffled: bool = False, rows: int = 1500) -> MarketDataset:
    """Independent returns of 0.3 %, whose sign the first of three features tells, at a cost of 0.02 %."""
    rng = np.random.default_rng(seed)
    sign = rng.choice([-1.0, 1.0], rows)
    mark = 100 * np.exp(0.003 * np.concatenate([[0], np.cumsum(sign)[:-1]]))
    states = rng.normal(size=(rows, 3))
    states[:, 0] = rng.permutation(sign) if shuffled else sign
    units = np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=states.astype(np.float32),
        mark=mark,
        costs=units * (mark * 0.0002)[:, None, None],
        segment=np.repeat([0, 1], [rows // 3, rows - rows // 3]).astype(np.int32),
        max_position=1.0,
        horizon_bars=6,
    )


def fit(name: str, *, shuffled: bool = False, settings: BaselineSettings = SMALL) -> LearnedStrategy:
    train, validation = edge_market(seed=0, shuffled=shuffled), edge_market(seed=1, shuffled=shuffled)
    strategy = fit_baseline(
        name,
        train,
        validation,
        settings,
        seed=0,
        device=CPU,
        resume=ResumePoint(None, ""),
        progress=NoProgress(),
    )
    assert isinstance(strategy, LearnedStrategy)
    return strategy


def earned(strategy: LearnedStrategy, dataset: MarketDataset) -> float:
    return mean_reward(strategy.actions(dataset), dataset, reward_table(dataset))


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_planted_edge_is_learnt_and_a_shuffled_one_is_not(name: str) -> None:
    learnt = fit(name)
    # Right on every bar earns 0.3 % less the cost of a flip on every other one.
    assert earned(learnt, edge_market(seed=2)) > 0.9 * (0.3 - 0.02)
    history = learnt.history
    assert history.columns == ["steps", "validation_return", "loss"]
    assert len(history) == 5
    assert history["validation_return"].max() > history["validation_return"][0]
    assert earned(fit(name, shuffled=True), edge_market(seed=2, shuffled=True)) < 0.03


def test_the_weights_kept_are_those_of_the_best_validation() -> None:
    strategy = fit("ppo", settings=SMALL.model_copy(update={"total_steps": 2048}))
    validation = edge_market(seed=1)
    assert earned(strategy, validation) == strategy.history["validation_return"].max()


@pytest.mark.parametrize("name", ["dqn", "ppo", "clstm_ppo", "cdqnrp"])
def test_the_greedy_network_decides_as_the_trained_agent_does(name: str) -> None:
    dataset = edge_market(seed=0, rows=120)
    lookback = 4 if name == "clstm_ppo" else None
    core = BatchedTradingEnv(dataset, num_envs=64, episode_bars=20, generator=np.random.default_rng(0))
    env = TradingVecEnv(core, lookback)
    agent = make_agent(name, env, SMALL, seed=0, device=CPU)
    network = PolicyNetwork(3, SMALL.hidden_sizes, lookback, 8 if lookback else None)
    greedy_half(agent, network)
    env.reset()
    for _ in range(3):
        env.step(np.random.default_rng(1).integers(3, size=64))
        rows, held = env.core.rows, env.core.held
        market = dataset.states[rows] if lookback is None else LookbackWindows(dataset, lookback).at(rows)
        with torch.no_grad():
            chosen = network(torch.from_numpy(market)).argmax(-1).numpy()[np.arange(64), held]
        np.testing.assert_array_equal(agent.predict(env.observe(), deterministic=True)[0], chosen)


def test_the_encoder_reads_nothing_beyond_a_short_windows_last_bar() -> None:
    torch.manual_seed(0)
    encoder = CascadedLstm(3, 8)
    dataset = edge_market(seed=0, rows=30)
    short, long = LookbackWindows(dataset, 2).at(np.array([1, 25])), LookbackWindows(dataset, 9).at(np.array([1, 25]))
    with torch.no_grad():
        two, nine = encoder(torch.from_numpy(short)), encoder(torch.from_numpy(long))
    torch.testing.assert_close(two[0], nine[0])
    assert not torch.allclose(two[1], nine[1])


def test_the_target_network_is_copied_at_seeded_random_intervals() -> None:
    core = BatchedTradingEnv(edge_market(seed=0), num_envs=4, episode_bars=20, generator=np.random.default_rng(0))
    agents = [make_agent("cdqnrp", TradingVecEnv(core), SMALL, seed=seed, device=CPU) for seed in (0, 0, 1)]
    drawn = []
    for agent in agents:
        assert isinstance(agent, PerturbedTargetDQN)
        drawn.append([])
        for agent.copies in range(200):
            drawn[-1].append(agent.drawn_interval())
    assert drawn[0] == drawn[1] != drawn[2]
    # 640 steps of 4 copies are 160 calls, give or take a half.
    assert 80 <= min(drawn[0]) < 90 < 230 < max(drawn[0]) <= 240
    assert np.mean(drawn[0]) == pytest.approx(160, abs=10)


def test_the_process_streams_are_left_as_they_were() -> None:
    np.random.seed(3)  # noqa: NPY002 -- the stream that must be left alone
    torch.manual_seed(3)
    fit("dqn", settings=SMALL.model_copy(update={"total_steps": 1000}))
    after = np.random.random(), torch.rand(1).item()  # noqa: NPY002 -- as above
    np.random.seed(3)  # noqa: NPY002 -- as above
    torch.manual_seed(3)
    assert after == (np.random.random(), torch.rand(1).item())  # noqa: NPY002 -- as above


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_diverged_training_says_so(name: str) -> None:
    with pytest.raises(ArchetypeError, match=f"{name} diverged before step"):
        fit(name, settings=SMALL.model_copy(update={"learning_rate": 1e30}))


def test_progress_is_told_the_steps_and_the_score() -> None:
    class Told(NoProgress):
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.metrics: list[set[str]] = []

        def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
            self.steps.append(completed)
            self.metrics.append(set(metrics or {}))

    told = Told()
    market, brief = edge_market(seed=0), SMALL.model_copy(update={"total_steps": 2048})
    fit_baseline("ppo", market, market, brief, seed=0, device=CPU, resume=ResumePoint(None, ""), progress=told)
    assert told.steps[0] == 0
    assert told.steps[-1] == 2048
    assert told.steps == sorted(told.steps)
    assert told.metrics[-1] == {"validation_return", "loss"}


_DECIDE = """
import sys
from pathlib import Path
import numpy as np
from archetype_dagster.baselines import load_baseline
from archetype_dagster.market.dataset import MarketDataset
arrays = dict(np.load(sys.argv[1]))
dataset = MarketDataset(pair="ETH", max_position=1.0, horizon_bars=6, **arrays)
np.save(sys.argv[2], load_baseline("clstm_ppo", Path(sys.argv[3])).actions(dataset))
"""


def test_a_strategy_read_in_another_process_decides_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = PolicyNetwork(3, (8,), 4, 6).eval()
    for weights in network.parameters():
        torch.nn.init.normal_(weights)
    strategy = LearnedStrategy("clstm_ppo", network, pl.DataFrame({"steps": [0]}))
    strategy.save(tmp_path)
    dataset = edge_market(seed=3)
    names = ("timestamps", "states", "mark", "costs", "segment")
    np.savez(tmp_path / "market.npz", **{name: getattr(dataset, name) for name in names})
    decided = tmp_path / "actions.npy"
    script = [sys.executable, "-c", _DECIDE, str(tmp_path / "market.npz"), str(decided), str(tmp_path)]
    subprocess.run(script, check=True)
    actions = np.load(decided)
    np.testing.assert_array_equal(actions, greedy_actions(network, dataset))
    assert len(np.unique(actions)) > 1
