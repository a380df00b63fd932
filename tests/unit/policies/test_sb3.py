from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from torch import nn

from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.policies import BackboneFeaturesExtractor, SB3Adapter, load_policy

BOX, DISCRETE = spaces.Box(-2, 3, (2,), np.float32), spaces.Discrete(3)
SMALL: dict[str, dict[str, Any]] = {
    "TransformerBackbone": {"n_heads": 2, "n_layers": 1, "d_ff": 16},
    "RecurrentBackbone": {"hidden_size": 8},
    "AutoencoderBackbone": {"hidden_sizes": [16]},
    "PatchTSTBackbone": {
        "patch_length": 2,
        "d_model": 8,
        "n_heads": 2,
        "n_layers": 1,
        "d_ff": 16,
        "instance_norm": True,
    },
}
SPEC = """
algorithm: PPO
policy: MlpPolicy
n_steps: 20
batch_size: 10
n_epochs: 1
policy_kwargs:
  activation_fn: torch.nn.ReLU
  features_extractor_class: BackboneFeaturesExtractor
  features_extractor_kwargs: {backbone_alias: recurrentbackbone, sequence_length: 6, features_dim: 8}
"""


def adapter(algorithm: str, alias: str = "RecurrentBackbone", **parameters: Any) -> SB3Adapter:
    policy = {
        "net_arch": [8],
        "features_extractor_class": "BackboneFeaturesExtractor",
        "features_extractor_kwargs": {
            **{"backbone_alias": alias, "sequence_length": 6, "features_dim": 8},
            "backbone_kwargs": SMALL[alias],
        },
    }
    short = (
        {"n_steps": 20, "batch_size": 10, "n_epochs": 1}
        if "PPO" in algorithm
        else {"learning_starts": 8, "batch_size": 8, "buffer_size": 64, "train_freq": 1}
    )
    return SB3Adapter(algorithm, policy_kwargs=policy, **{**short, **parameters})


def trained_parts(agent: Any) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """The networks that are trained and by what, without the copies that follow them."""
    if hasattr(agent, "q_net"):
        return [(agent.q_net, agent.policy.optimizer)]
    parts = [agent.actor, agent.critic] if hasattr(agent, "critic") else [agent.policy]
    return [(part, part.optimizer) for part in parts]


@pytest.mark.parametrize(
    ("algorithm", "alias"),
    [
        *((algorithm, alias) for algorithm in ("PPO", "SAC") for alias in SMALL),
        *((algorithm, "RecurrentBackbone") for algorithm in ("TD3", "DQN", "RecurrentPPO")),
    ],
)
def test_every_trainable_weight_is_optimised_and_gets_a_gradient(
    algorithm: str, alias: str, windows_env: Callable[..., Any]
) -> None:
    agent = adapter(algorithm, alias).build(windows_env(DISCRETE if algorithm == "DQN" else BOX), seed=1)
    parts = trained_parts(agent)
    backbones = [part for network, _ in parts for part in network.modules() if hasattr(part, "encode")]
    before = [weight.clone() for backbone in backbones for weight in backbone.parameters() if weight.requires_grad]
    agent.learn(20)
    optimised = {id(weight) for _, optimizer in parts for weight in optimizer.param_groups[0]["params"]}
    after = [weight for backbone in backbones for weight in backbone.parameters() if weight.requires_grad]
    assert len(after) >= 3
    for old, new in zip(before, after, strict=True):
        assert id(new) in optimised
        assert new.grad is not None
        assert new.grad.any()
        assert not torch.equal(old, new)


def test_a_yaml_specification_becomes_an_agent(windows_env: Callable[..., Any]) -> None:
    spec = yaml.safe_load(SPEC)
    made = SB3Adapter.from_spec(spec)
    agent = made.build(windows_env(DISCRETE), seed=3)
    assert isinstance(agent.policy.features_extractor, BackboneFeaturesExtractor)
    assert agent.policy.activation_fn is nn.ReLU
    assert made.spec == spec
    assert (agent.n_steps, agent.batch_size) == (20, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "A2C"}, "unknown algorithm 'A2C'; choose from PPO, SAC, TD3, DQN, RecurrentPPO"),
        ({"policy": "os.system"}, "unknown policy 'os.system' of PPO"),
        ({"learning_rat": 1e-3}, "PPO takes no .'learning_rat'. from a specification"),
        ({"rollout_buffer_class": "os.system"}, "PPO takes no .'rollout_buffer_class'."),
        ({"policy_kwargs": {"activation_fn": "os.system"}}, "activation_fn must be one of ELU, .* got 'os.system'"),
        ({"policy_kwargs": {"activation_fn": "evil.ReLU"}}, "got 'evil.ReLU'"),
        ({"policy_kwargs": {"features_extractor_class": "torch.nn.ReLU"}}, "features_extractor_class must be one of"),
        ({"policy_kwargs": {"optimizer_class": "torch.optim.Adamax"}}, "optimizer_class must be one of"),
        ({"policy_kwargs": {"heads": 3}}, "MlpPolicy takes no .'heads'."),
    ],
)
def test_what_is_on_no_list_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SB3Adapter.from_spec({**yaml.safe_load(SPEC), **changes})


def test_a_specification_without_an_algorithm_is_refused() -> None:
    with pytest.raises(SettingsError, match="must name its algorithm"):
        SB3Adapter.from_spec({"policy": "MlpPolicy"})


def test_action_noise_is_made_for_the_environment(windows_env: Callable[..., Any]) -> None:
    noisy = adapter("TD3", action_noise={"class": "NormalActionNoise", "sigma": 0.2})
    assert noisy.build(windows_env(BOX), seed=0).action_noise._sigma.tolist() == [0.2, 0.2]
    with pytest.raises(SettingsError, match="must name its class and sigma"):
        adapter("TD3", action_noise={"class": "NormalActionNoise"})
    with pytest.raises(SettingsError, match="action_noise must be one of"):
        adapter("TD3", action_noise={"class": "os.system", "sigma": 1})


@pytest.mark.parametrize(("algorithm", "space"), [("SAC", DISCRETE), ("TD3", DISCRETE), ("DQN", BOX)])
def test_an_algorithm_refuses_actions_it_cannot_take(
    algorithm: str, space: spaces.Space[Any], windows_env: Callable[..., Any]
) -> None:
    with pytest.raises(SettingsError, match=f"{algorithm} needs a"):
        adapter(algorithm).build(windows_env(space), seed=0)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((6, 2), {"sequence_length": 5}, "must be 5 rows of equal width, got the shape"),
        ((6, 2), {"sequence_length": 6, "input_features": 3}, "must be 6 rows of 3, got the shape"),
        ((13,), {"sequence_length": 6}, "must be 6 rows of equal width"),
        ((12,), {"sequence_length": 6, "input_features": 3}, "must be 6 rows of 3"),
        ((2, 6), {"sequence_length": 6}, "must be 6 rows"),
        ((1, 6, 2), {"sequence_length": 6}, "reads a Box of shape"),
        ((12,), {"sequence_length": 0}, "sequence_length must be positive"),
    ],
)
def test_a_space_of_another_shape_is_refused(shape: tuple[int, ...], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BackboneFeaturesExtractor(spaces.Box(-1, 1, shape), **arguments)
    with pytest.raises(SettingsError, match="reads a Box"):
        BackboneFeaturesExtractor(spaces.Discrete(4))


def test_flat_and_shaped_observations_give_the_same_features() -> None:
    shaped = BackboneFeaturesExtractor(spaces.Box(-1, 1, (30, 2)))
    flat = BackboneFeaturesExtractor(spaces.Box(-1, 1, (60,)), input_features=2)
    flat.load_state_dict(shaped.state_dict())
    windows = torch.rand(4, 30, 2)
    assert shaped.features_dim == 128
    assert torch.equal(shaped.eval()(windows), flat.eval()(windows.flatten(1)))


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "TD3", "DQN", "RecurrentPPO"])
def test_a_saved_policy_repeats_its_actions(algorithm: str, windows_env: Callable[..., Any], tmp_path: Path) -> None:
    env = windows_env(DISCRETE if algorithm == "DQN" else BOX, flat=True)
    made = adapter(algorithm)
    agent = made.build(env, seed=2)
    agent.learn(20)
    made.save(agent, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]
    observations = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    loaded = load_policy(tmp_path)
    expected, state = agent.predict(observations, deterministic=True)
    actions, again = loaded.predict(observations, deterministic=True)
    np.testing.assert_array_equal(actions, expected)
    if algorithm == "RecurrentPPO":
        np.testing.assert_array_equal(again[0], state[0])
    assert np.isin(actions, range(3)).all() if algorithm == "DQN" else (np.abs(actions - 0.5) <= 2.5).all()


def test_a_part_listed_under_several_names_is_stored_once(windows_env: Callable[..., Any], tmp_path: Path) -> None:
    made = adapter("PPO")
    agent = made.build(windows_env(BOX), seed=2)
    made.save(agent, tmp_path)
    numbers = sum(weight.numel() for weight in agent.policy.parameters())
    assert (tmp_path / "policy.safetensors").stat().st_size < 4 * numbers + 4000


def test_the_state_of_recurrent_ppo_never_crosses_an_episodes_end(
    windows_env: Callable[..., Any], tmp_path: Path
) -> None:
    made = adapter("RecurrentPPO")
    made.save(made.build(windows_env(BOX), seed=5), tmp_path)
    policy = load_policy(tmp_path)
    first, second = np.random.default_rng(1).normal(size=(2, 4, 1, 6, 2)).astype(np.float32)

    def played(observations: np.ndarray, state: Any) -> tuple[list[np.ndarray], Any]:
        actions = []
        for step, observation in enumerate(observations):
            action, state = policy.predict(observation, state, np.array([step == 0]), deterministic=True)
            actions.append(action)
        return actions, state

    alone, _ = played(second, None)
    after, _ = played(second, played(first, None)[1])
    np.testing.assert_array_equal(after, alone)


def test_an_agent_of_another_algorithm_is_not_saved(windows_env: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be a PPO, got a SAC"):
        adapter("PPO").save(adapter("SAC").build(windows_env(BOX), seed=0), tmp_path)


def test_a_saved_policy_that_names_other_classes_is_refused(windows_env: Callable[..., Any], tmp_path: Path) -> None:
    made = adapter("PPO")
    made.save(made.build(windows_env(BOX), seed=0), tmp_path)
    path = tmp_path / "policy.json"
    text = path.read_text()
    path.write_text(text.replace("BackboneFeaturesExtractor", "os.system"))
    with pytest.raises(ArtifactError, match="features_extractor_class must be one of"):
        load_policy(tmp_path)
    path.write_text(text.replace('"hidden_size": 8', '"hidden_size": 9'))
    with pytest.raises(ArtifactError, match="weights of another network"):
        load_policy(tmp_path)
    path.write_text(text.replace('"bridge": "sb3"', '"bridge": "pickle"'))
    with pytest.raises(ArtifactError, match="unknown bridge 'pickle'"):
        load_policy(tmp_path)
