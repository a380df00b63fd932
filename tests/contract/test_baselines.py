"""What every baseline of the registry must do, whatever is inside it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.baselines import BASELINES, Strategy, fit_baseline, load_baseline
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import NoProgress

TINY = BaselineSettings.model_validate(
    {
        "total_steps": 640,
        "num_envs": 8,
        "episode_bars": 20,
        "learning_rate": 0.01,
        "hidden_sizes": [8],
        "evaluations": 2,
        "dqn": {"buffer_steps": 256, "learning_starts": 64, "batch_size": 32, "target_interval_steps": 80},
        "rollout": {"bars": 8, "batch_size": 32},
        "recurrent": {"lookback_bars": 3, "hidden_size": 4},
        "earnhft": {"chunk_bars": 12, "batch_size": 16, "num_trends": 3, "decision_bars": 3},
        "macrohft": {"chunk_bars": 12, "batch_size": 16, "num_labels": 2, "context_bars": 6, "memory_size": 64},
    }
)
LEARNERS = [name for name, baseline in BASELINES.items() if baseline.is_learner]


def market(seed: int) -> MarketDataset:
    rng = np.random.default_rng(seed)
    rows = 260
    mark = 100 * np.exp(np.cumsum(rng.normal(0, 0.004, rows)))
    units = 2.0 * np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=rng.normal(size=(rows, len(FEATURE_NAMES))).astype(np.float32),
        mark=mark,
        costs=units * (mark * 0.0002)[:, None, None],
        segment=np.repeat([4, 5], [150, 110]).astype(np.int32),
        max_position=2.0,
        horizon_bars=12,
    )


TEST = market(2)


class Killed(Exception):
    """Stands for a kill between two validations."""


class KilledAt(NoProgress):
    """Ends the training at its n-th report, after the state was saved."""

    def __init__(self, reports: int) -> None:
        self.left = reports

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


def fit(name: str, *, resume: Path | None = None, progress: NoProgress | None = None, seed: int = 0) -> Strategy:
    return fit_baseline(
        name,
        market(0),
        market(1),
        TINY,
        seed=seed,
        device=torch.device("cpu"),
        resume=ResumePoint(resume, "key"),
        progress=progress or NoProgress(),
    )


@pytest.fixture(scope="module")
def fitted() -> Mapping[str, Strategy]:
    return {name: fit(name) for name in BASELINES}


@pytest.mark.parametrize("name", BASELINES)
def test_every_row_has_an_action(name: str, fitted: Mapping[str, Strategy]) -> None:
    actions = fitted[name].actions(TEST)
    assert fitted[name].name == name
    assert actions.dtype == np.int8
    assert actions.shape == (len(TEST),)
    assert set(actions.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("name", BASELINES)
def test_no_action_depends_on_what_comes_after_it(name: str, fitted: Mapping[str, Strategy]) -> None:
    actions = fitted[name].actions(TEST)
    other = market(3)
    for cut in (1, 40, 149, 150, 201):
        past = np.arange(len(TEST)) < cut
        changed = replace(
            TEST,
            states=np.where(past[:, None], TEST.states, 3 * other.states),
            mark=np.where(past, TEST.mark, 2 * other.mark),
            costs=np.where(past[:, None, None], TEST.costs, 5 * other.costs),
        )
        np.testing.assert_array_equal(fitted[name].actions(changed)[:cut], actions[:cut])
        np.testing.assert_array_equal(fitted[name].actions(TEST.rows(slice(0, cut))), actions[:cut])


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "random"])
def test_nothing_is_carried_over_a_gap(name: str, fitted: Mapping[str, Strategy]) -> None:
    alone = fitted[name].actions(TEST.rows(TEST.segment == 5))
    np.testing.assert_array_equal(alone, fitted[name].actions(TEST)[TEST.segment == 5])


@pytest.mark.parametrize("name", BASELINES)
def test_what_is_saved_decides_the_same_and_is_refused_elsewhere(
    name: str, fitted: Mapping[str, Strategy], tmp_path: Path
) -> None:
    fitted[name].save(tmp_path)
    read = load_baseline(name, tmp_path)
    assert read.name == name
    np.testing.assert_array_equal(read.actions(TEST), fitted[name].actions(TEST))
    for other in ("always_flat", "dqn", "ppo", "macd"):
        if other != name:
            with pytest.raises(ArtifactError):
                load_baseline(other, tmp_path)


def saved(strategy: Strategy, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    strategy.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_training_killed_twice_ends_with_the_very_same_files(
    name: str, fitted: Mapping[str, Strategy], tmp_path: Path
) -> None:
    # At the first report nothing but the untrained network has been judged.
    for _ in range(2):
        with pytest.raises(Killed):
            fit(name, resume=tmp_path / "resume", progress=KilledAt(1))
    resumed = fit(name, resume=tmp_path / "resume")
    assert saved(resumed, tmp_path / "resumed") == saved(fitted[name], tmp_path / "whole")


@pytest.mark.parametrize("name", LEARNERS)
def test_another_seed_trains_another_network(name: str, fitted: Mapping[str, Strategy], tmp_path: Path) -> None:
    one, other = saved(fitted[name], tmp_path / "one"), saved(fit(name, seed=1), tmp_path / "other")
    weights = [file for file in one if file.endswith(".safetensors")]
    assert weights
    assert all(one[file] != other[file] for file in weights)


def test_an_unknown_baseline_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown baseline 'sarsa'; choose from clstm_ppo, ppo"):
        fit("sarsa")
    with pytest.raises(SettingsError, match="unknown baseline 'sarsa'"):
        load_baseline("sarsa", tmp_path)
