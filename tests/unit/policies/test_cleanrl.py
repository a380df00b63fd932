from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies import CleanRLAdapter, load_policy

BOX, DISCRETE = spaces.Box(-0.5, 1, (2,), np.float32), spaces.Discrete(3, start=5)
SHORT: dict[str, Any] = {
    **{"backbone_alias": "RecurrentBackbone", "backbone_kwargs": {"hidden_size": 8}, "sequence_length": 6},
    **{"features_dim": 8, "hidden_sizes": (8,), "rollout_steps": 16, "total_steps": 64, "minibatches": 2},
}
ATTENTION = {"n_heads": 2, "n_layers": 1, "d_ff": 32, "dropout": 0.0}


def copies(make: Callable[[], gym.Env[Any, Any]], count: int = 2, **keywords: Any) -> SyncVectorEnv:
    return SyncVectorEnv([make] * count, **{"autoreset_mode": AutoresetMode.SAME_STEP, **keywords})


def adapter(envs: Any, seed: int = 0, **changes: Any) -> CleanRLAdapter:
    return CleanRLAdapter(envs.single_observation_space, envs.single_action_space, {**SHORT, **changes}, seed=seed)


@pytest.mark.parametrize(
    ("alias", "arguments", "learning_rate", "updates"),
    [
        ("RecurrentBackbone", {"hidden_size": 32}, 1e-2, 18),
        ("TransformerBackbone", ATTENTION, 3e-3, 8),
        ("PatchTSTBackbone", {**ATTENTION, "patch_length": 2, "d_model": 32}, 3e-3, 8),
        ("LastRow", {}, 1e-2, 8),
    ],
)
def test_a_bit_shown_some_rows_ago_is_recalled_with_memory_only(
    alias: str, arguments: dict[str, Any], learning_rate: float, updates: int, recall_env: type, last_row: str
) -> None:
    envs = recall_env()
    agent = adapter(
        envs,
        **{"backbone_alias": alias, "backbone_kwargs": arguments, "features_dim": 32, "hidden_sizes": ()},
        **{"total_steps": 1024 * updates, "learning_rate": learning_rate, "minibatches": 4},
        entropy_weight=0.0,
    )
    agent.learn(envs)
    rng = np.random.default_rng(7)
    shown = rng.choice(np.float32([-1, 1]), size=(2000, 6, 2))
    right = (agent.predict(shown, deterministic=True)[0] == (shown[:, -1 - envs.ago, 0] > 0)).mean()
    assert abs(right - 0.5) < 0.06 if alias == last_row else right > 0.98


@pytest.mark.parametrize("space", [BOX, DISCRETE])
@pytest.mark.parametrize(
    "alias", ["TransformerBackbone", "RecurrentBackbone", "AutoencoderBackbone", "PatchTSTBackbone"]
)
def test_every_trainable_weight_gets_a_gradient_and_moves(
    alias: str, space: spaces.Space[Any], windows_env: Callable[..., Any]
) -> None:
    envs = copies(lambda: windows_env(space))
    agent = adapter(envs, backbone_alias=alias, backbone_kwargs={})
    before = {name: weight.clone() for name, weight in agent.network.named_parameters()}
    history = agent.learn(envs)
    assert [row["steps"] for row in history] == [32, 64]
    for name, weight in agent.network.named_parameters():
        if weight.requires_grad:
            assert weight.grad.any(), name
            assert not torch.equal(weight, before[name]), name


@pytest.mark.parametrize("space", [BOX, DISCRETE])
def test_training_raises_the_reward_and_repeats_itself_to_the_bit(
    space: spaces.Space[Any], windows_env: Callable[..., Any]
) -> None:
    def trained() -> tuple[CleanRLAdapter, list[dict[str, float]]]:
        envs = copies(lambda: windows_env(space, flat=True), 4)
        agent = adapter(envs, backbone_kwargs={"hidden_size": 8}, total_steps=64 * 8, learning_rate=2e-2)
        return agent, agent.learn(envs)

    agent, history = trained()
    again, repeated = trained()
    assert repeated == history
    assert all(torch.equal(a, b) for a, b in zip(agent.network.parameters(), again.network.parameters(), strict=True))
    assert history[-1]["reward"] > history[0]["reward"] + 0.1
    played, _ = agent.predict(np.zeros((3, 12), np.float32), deterministic=True)
    assert all(space.contains(action) for action in played)


@pytest.mark.parametrize(("truncates", "worth"), [(True, 2.0), (False, 1.0)])
def test_a_truncated_episode_is_worth_what_follows_and_a_terminated_one_is_not(
    truncates: bool, worth: float, last_row: str
) -> None:
    class Ending(gym.Env[np.ndarray, Any]):
        observation_space, action_space = spaces.Box(-1, 1, (1, 1)), spaces.Discrete(2)

        def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros((1, 1), np.float32), {}

        def step(self, _: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            return np.zeros((1, 1), np.float32), 1.0, not truncates, truncates, {}

    envs = copies(Ending)
    agent = adapter(
        envs,
        **{"backbone_alias": last_row, "backbone_kwargs": {}, "sequence_length": 1, "gamma": 0.5},
        **{"total_steps": 32 * 25, "learning_rate": 2e-2, "anneal_learning_rate": False},
    )
    agent.learn(envs)
    assert agent.network(torch.zeros(1, 1, 1))[1].item() == pytest.approx(worth, abs=0.1)


def test_a_rollout_that_minibatches_do_not_divide_is_cut_into_even_parts(windows_env: Callable[..., Any]) -> None:
    # Chunks of three would leave a single step, whose advantages have no deviation.
    envs = copies(lambda: windows_env(BOX), 1)
    agent = adapter(envs, rollout_steps=10, minibatches=4, total_steps=10)
    [row] = agent.learn(envs)
    assert np.isfinite(list(row.values())).all()
    # Of fewer parts than asked for the mean would be too small.
    agent = adapter(envs, rollout_steps=9, minibatches=4, total_steps=9, epochs=1, learning_rate=1e-9)
    [row] = agent.learn(envs)
    scores = agent.network.scores(torch.zeros(1, 6, 2))
    expected = agent.network.judge(scores, torch.zeros(1, 2))[1].item()
    assert row["entropy"] == pytest.approx(expected, rel=1e-3)


def test_an_episode_is_played_alike_after_another_and_alone(windows_env: Callable[..., Any]) -> None:
    envs = copies(lambda: windows_env(BOX))
    agent = adapter(envs)
    agent.learn(envs)
    first, second = np.random.default_rng(1).normal(size=(2, 4, 6, 2)).astype(np.float32)
    alone = [agent.predict(observation, deterministic=True)[0] for observation in second]
    for observation in first:
        agent.predict(observation, deterministic=True)
    np.testing.assert_array_equal([agent.predict(window, deterministic=True)[0] for window in second], alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rat": 1.0}, "learning_rat: Extra inputs are not permitted"),
        ({"gamma": 1.5}, "gamma: Input should be less than or equal to 1, got 1.5"),
        ({"minibatches": 9}, "rollout_steps must be at least 2 minibatches, got 16 and 9"),
        ({"backbone_alias": "Mamba"}, "unknown backbone 'Mamba'"),
        ({"backbone_kwargs": {"units": 3}}, "takes no backbone_kwargs"),
        ({"sequence_length": 5}, "must be 5 rows"),
    ],
)
def test_unknown_settings_and_values_out_of_range_are_refused(
    changes: dict[str, Any], message: str, recall_env: type
) -> None:
    with pytest.raises(SettingsError, match=message):
        adapter(recall_env(2), **changes)


def test_environments_that_do_not_fit_are_refused(windows_env: Callable[..., Any], recall_env: type) -> None:
    agent = adapter(recall_env(2))
    with pytest.raises(SettingsError, match="must restart episodes in the step that ends them"):
        agent.learn(copies(lambda: windows_env(BOX), autoreset_mode=AutoresetMode.NEXT_STEP))
    with pytest.raises(SettingsError, match="spaces must be the policy's"):
        agent.learn(copies(lambda: windows_env(BOX)))
    with pytest.raises(SettingsError, match="actions must be Discrete or a Box"):
        CleanRLAdapter(spaces.Box(-1, 1, (6, 2)), spaces.MultiBinary(2), SHORT, seed=0)


def test_a_saved_policy_repeats_its_actions_in_a_new_process(windows_env: Callable[..., Any], tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(50, 6, 2)).astype(np.float32)
    np.save(tmp_path / "observations.npy", observations)
    expected = []
    for name, space in (("box", BOX), ("discrete", DISCRETE)):
        agent = adapter(copies(lambda space=space: windows_env(space)))
        agent.learn(copies(lambda space=space: windows_env(space)))
        agent.save(tmp_path / name)
        expected.append(agent.predict(observations, deterministic=True)[0])
        np.testing.assert_array_equal(
            load_policy(tmp_path / name).predict(observations, deterministic=True)[0], expected[-1]
        )
    script = """
import sys, numpy as np, pathlib, torch
from archetype_dagster.policies import CleanRLAdapter
torch.set_num_threads(1)
folder = pathlib.Path(sys.argv[1])
for name in ("box", "discrete"):
    actions, _ = CleanRLAdapter.load(folder / name).predict(np.load(folder / "observations.npy"), deterministic=True)
    np.save(folder / f"{name}.npy", actions)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    for name, actions in zip(("box", "discrete"), expected, strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), actions)


def test_a_policy_loads_without_the_file_its_backbone_was_pretrained_from(tmp_path: Path, recall_env: type) -> None:
    from archetype_dagster.policies import AutoencoderBackbone

    path = tmp_path / "pretrained.safetensors"
    AutoencoderBackbone(2, 6, 8, hidden_sizes=(9,)).save_pretrained(path)
    arguments = {"hidden_sizes": [9], "pretrained_path": str(path)}
    agent = adapter(recall_env(2), backbone_alias="AutoencoderBackbone", backbone_kwargs=arguments)
    agent.save(tmp_path / "policy")
    path.unlink()
    windows = np.ones((3, 6, 2), np.float32)
    np.testing.assert_array_equal(
        load_policy(tmp_path / "policy").predict(windows, deterministic=True)[0],
        agent.predict(windows, deterministic=True)[0],
    )
