from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies import CleanRLAdapter, GreedyPolicy, SB3Adapter

BOX, DISCRETE = spaces.Box(-2, 3, (2,), np.float32), spaces.Discrete(3)
BACKBONES: dict[str, dict[str, Any]] = {
    "TransformerBackbone": {"n_heads": 2, "n_layers": 1, "d_ff": 16},
    "RecurrentBackbone": {"hidden_size": 8},
    "AutoencoderBackbone": {"hidden_sizes": [16]},
    "PatchTSTBackbone": {"patch_length": 4, "d_model": 9, "n_heads": 2, "n_layers": 1, "instance_norm": True},
}
OBSERVATIONS = np.random.default_rng(0).normal(size=(1000, 6, 2)).clip(-4, 4).astype(np.float32)


def decider(algorithm: str, env: Any, alias: str | None = None) -> Any:
    """An agent whose weights are so large that its actions differ and reach the bounds."""
    if algorithm == "CleanRL":
        settings = {"backbone_alias": alias, "backbone_kwargs": BACKBONES[str(alias)], "sequence_length": 6}
        agent: Any = CleanRLAdapter(env.observation_space, env.action_space, settings, seed=1)
        network = agent.network
    else:
        policy: dict[str, Any] = {"net_arch": [8]}
        if alias is not None:
            policy["features_extractor_class"] = "BackboneFeaturesExtractor"
            policy["features_extractor_kwargs"] = {
                **{"backbone_alias": alias, "sequence_length": 6, "features_dim": 8},
                "backbone_kwargs": BACKBONES[alias],
            }
        agent = SB3Adapter(algorithm, policy_kwargs=policy).build(env, seed=1)
        network = agent.policy
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return agent


def greedy(agent: Any) -> GreedyPolicy:
    return GreedyPolicy(getattr(agent, "policy", None) or agent.network)


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "TD3", "DQN", "CleanRL", "PPO discrete", "CleanRL discrete"])
@pytest.mark.parametrize("alias", [None, "PatchTSTBackbone"])
def test_the_greedy_module_answers_as_the_agent_does(
    algorithm: str, alias: str | None, windows_env: Callable[..., Any]
) -> None:
    name, _, kind = algorithm.partition(" ")
    env = windows_env(DISCRETE if kind or name == "DQN" else BOX)
    agent = decider(name, env, "AutoencoderBackbone" if alias is None and name == "CleanRL" else alias)
    expected, _ = agent.predict(OBSERVATIONS, deterministic=True)
    with torch.no_grad():
        answers = greedy(agent)(torch.as_tensor(OBSERVATIONS)).numpy()
    assert len(np.unique(expected, axis=0)) > 1
    assert answers.dtype == (np.int64 if env.action_space is DISCRETE else np.float32)
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-5)


def test_a_policy_with_a_state_of_its_own_is_refused(windows_env: Callable[..., Any]) -> None:
    recurrent = SB3Adapter("RecurrentPPO").build(windows_env(BOX), seed=0)
    with pytest.raises(SettingsError, match="RecurrentActorCriticPolicy cannot be exported"):
        GreedyPolicy(recurrent.policy)
