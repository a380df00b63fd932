"""Exported agents answer as the trained ones do: PPO and SAC over every backbone, TD3, DQN and the single-file PPO."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import nn

from archetype_dagster.deployment.agent_export import TOLERANCE, AgentGraph, check_agent, export_agent
from archetype_dagster.deployment.bundle import seal_bundle
from archetype_dagster.deployment.graphs import Graph, write_graph
from archetype_dagster.deployment.onnx_agent import AGENT_FILE, OnnxAgent
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.policies import CleanRLAdapter, SB3Adapter

BOX, DISCRETE = spaces.Box(-2, 3, (2,), np.float32), spaces.Discrete(3, start=5)
BACKBONES: dict[str, dict[str, Any]] = {
    "TransformerBackbone": {"n_heads": 2, "n_layers": 1, "d_ff": 16},
    "RecurrentBackbone": {"hidden_size": 8},
    "AutoencoderBackbone": {"hidden_sizes": [16]},
    "PatchTSTBackbone": {"patch_length": 4, "d_model": 9, "n_heads": 2, "n_layers": 1, "instance_norm": True},
}
OBSERVATIONS = np.random.default_rng(0).normal(size=(1000, 12)).astype(np.float32)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Still(gym.Env[np.ndarray, Any]):
    """Spaces and nothing else: six rows of two numbers, flat."""

    observation_space = spaces.Box(-9, 9, (12,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space


def decider(algorithm: str, alias: str | None, actions: spaces.Space[Any] = BOX) -> Any:
    """An agent whose weights are so large that its actions differ and reach the bounds."""
    env = Still(actions)
    if algorithm == "CleanRL":
        settings = {"backbone_alias": alias, "backbone_kwargs": BACKBONES[str(alias)], "sequence_length": 6}
        agent: Any = CleanRLAdapter(env.observation_space, actions, settings, seed=1)
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


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_every_backbone_answers_within_the_tolerance_and_repeats_itself(algorithm: str, tmp_path: Path) -> None:
    agents = {alias or "mlp": decider(algorithm, alias) for alias in (None, *BACKBONES)}

    class Together(nn.Module):
        """One export is much quicker than five."""

        def __init__(self) -> None:
            super().__init__()
            self.graphs = nn.ModuleList(map(AgentGraph, agents.values()))

        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(graph(observation) for graph in self.graphs)

    write_graph(tmp_path, Graph("all.onnx", Together(), {"observation": torch.zeros(3, 12)}, tuple(agents)))
    session = onnxruntime.InferenceSession(tmp_path / "all.onnx")
    answers, again = (session.run(None, {"observation": OBSERVATIONS}) for _ in range(2))
    for (name, agent), answer, repeated in zip(agents.items(), answers, again, strict=True):
        expected, _ = agent.predict(OBSERVATIONS, deterministic=True)
        assert len(np.unique(expected, axis=0)) > 1
        np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE, err_msg=name)
        np.testing.assert_array_equal(answer, repeated)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, FeatureScaler, Path]:
    """SAC over scaled observations, its actions from -2 to 3."""
    folder = tmp_path_factory.mktemp("agent")
    agent, scaler = decider("SAC", "AutoencoderBackbone"), FeatureScaler(np.array([0.3, -0.2]), np.array([0.5, 2]), 1.5)
    export_agent(agent, folder, scaler=scaler)
    return agent, scaler, folder


def test_the_folder_holds_graph_manifest_and_checksums(exported: tuple[Any, FeatureScaler, Path]) -> None:
    agent, scaler, folder = exported
    assert sorted(path.name for path in folder.iterdir()) == ["agent.json", "agent.onnx", "checksums.json"]
    read = OnnxAgent.load(folder)
    assert read.manifest["observation"] == {"shape": [12], "dtype": "float32"}
    assert read.manifest["action_space"] == {"kind": "Box", "shape": [2], "low": [-2.0] * 2, "high": [3.0] * 2}
    assert read.manifest["normaliser"]["mean"] == [0.3, -0.2]
    scaled = scaler.transform(OBSERVATIONS.reshape(-1, 6, 2)).reshape(-1, 12)
    expected, _ = agent.predict(scaled, deterministic=True)
    parity = check_agent(expected, read, OBSERVATIONS)
    assert parity.observations == 1000
    assert parity.max_abs_difference <= TOLERANCE
    assert read.predict(OBSERVATIONS[:1]).shape == (1, 2)
    with pytest.raises(ArtifactError, match="must decide as the trained one within 1e-05"):
        check_agent(expected + 1e-3, read, OBSERVATIONS)
    with pytest.raises(ValueError, match="observations must be"):
        read.predict(OBSERVATIONS[:, :6])


_RUN = """
import sys, numpy as np, pathlib
from archetype_dagster.deployment.onnx_agent import OnnxAgent
agent = OnnxAgent.load(pathlib.Path(sys.argv[1]))
np.save(sys.argv[3], agent.predict(np.load(sys.argv[2])))
assert not {"torch", "stable_baselines3", "gymnasium"} & set(sys.modules)
"""


def test_it_runs_in_another_process_without_torch(exported: tuple[Any, FeatureScaler, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "seen.npy", OBSERVATIONS)
    arguments = [str(exported[2]), str(tmp_path / "seen.npy"), str(tmp_path / "actions.npy")]
    subprocess.run([sys.executable, "-c", _RUN, *arguments], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), OnnxAgent.load(exported[2]).predict(OBSERVATIONS))


def test_damaged_and_foreign_files_are_refused(exported: tuple[Any, FeatureScaler, Path], tmp_path: Path) -> None:
    for path in exported[2].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / AGENT_FILE).read_text()
    (tmp_path / AGENT_FILE).write_text(text.replace("0.3", "0.4"))
    with pytest.raises(ArtifactError, match="does not have the hash"):
        OnnxAgent.load(tmp_path)
    (tmp_path / AGENT_FILE).write_text(text)
    (tmp_path / "agent.onnx").unlink()
    with pytest.raises(ArtifactError, match="is missing although"):
        OnnxAgent.load(tmp_path)


def sealed(folder: Path, content: object) -> Path:
    """The folder with another manifest, under checksums that fit."""
    (folder / AGENT_FILE).write_text(json.dumps(content))
    seal_bundle(folder, [AGENT_FILE, "agent.onnx"])
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 2}, "has schema version 2, this version reads 1; upgrade archetype-dagster"),
        ({"schema_version": 0}, "has schema version 0, this version reads 1; export the agent again"),
        ({"schema_version": True}, "has schema version True, this version reads 1; export the agent again"),
        ({"observation": {"shape": [11], "dtype": "float32"}}, r"graph\.inputs are .*, the spaces call for .*11"),
        ({"observation": {"shape": [12], "dtype": "float64"}}, r"observation\.dtype is 'float64'"),
        ({"observation": {"shape": [True]}}, r"observation\.dtype is missing"),
        ({"observation": {"dtype": "float32", "shape": [True]}}, r"observation\.shape\[0\] must be an integer"),
        ({"action_space": {"kind": "Discrete", "n": 3, "start": 0}}, r"graph\.outputs are .*, the spaces call for"),
        ({"graph": {}}, r"graph\.inputs is missing; export the agent again"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    exported: tuple[Any, FeatureScaler, Path], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    shutil.copytree(exported[2], tmp_path, dirs_exist_ok=True)
    manifest = json.loads((tmp_path / AGENT_FILE).read_text())
    with pytest.raises(ArtifactError, match=rf"agent\.json.* {reason}"):
        OnnxAgent.load(sealed(tmp_path, {**manifest, **change}))


def test_whatever_is_wrong_in_the_manifest_is_one_clear_error(
    exported: tuple[Any, FeatureScaler, Path], malformed: Callable[[Any], Iterator[tuple[str, Any]]], tmp_path: Path
) -> None:
    shutil.copytree(exported[2], tmp_path, dirs_exist_ok=True)
    manifest = json.loads((tmp_path / AGENT_FILE).read_text())
    runs_on = {name: manifest[name] for name in ("schema_version", "observation", "graph")}
    runs_on["action_space"] = {name: manifest["action_space"][name] for name in ("kind", "shape")}
    del runs_on["graph"]["file"]
    for what, wrong in malformed(runs_on):
        sealed(tmp_path, wrong)
        with pytest.raises(ArtifactError) as refused:
            pytest.fail(f"{what}: {OnnxAgent.load(tmp_path)}")
        assert AGENT_FILE in str(refused.value), what


def test_a_file_that_is_not_listed_is_refused(exported: tuple[Any, FeatureScaler, Path], tmp_path: Path) -> None:
    shutil.copytree(exported[2], tmp_path, dirs_exist_ok=True)
    shutil.copy(tmp_path / "agent.onnx", tmp_path / "other.onnx")
    with pytest.raises(ArtifactError, match=r"other\.onnx is not listed in checksums\.json.*export the agent again"):
        OnnxAgent.load(tmp_path)


@pytest.mark.parametrize(("algorithm", "actions"), [("TD3", BOX), ("DQN", spaces.Discrete(3))])
def test_deterministic_learners_answer_as_they_do(algorithm: str, actions: spaces.Space[Any], tmp_path: Path) -> None:
    agent = decider(algorithm, None, actions)
    export_agent(agent, tmp_path)
    expected, _ = agent.predict(OBSERVATIONS, deterministic=True)
    assert len(np.unique(expected, axis=0)) > 1
    assert check_agent(expected, OnnxAgent.load(tmp_path), OBSERVATIONS).max_abs_difference <= TOLERANCE


def test_discrete_actions_count_from_their_start(tmp_path: Path) -> None:
    agent = decider("CleanRL", "RecurrentBackbone", DISCRETE)
    manifest = export_agent(agent, tmp_path)
    assert manifest["action_space"] == {"kind": "Discrete", "n": 3, "start": 5}
    assert manifest["normaliser"] is None
    expected, _ = agent.predict(OBSERVATIONS, deterministic=True)
    assert set(expected) <= {5, 6, 7}
    assert len(set(expected)) > 1
    assert check_agent(expected, OnnxAgent.load(tmp_path), OBSERVATIONS).max_abs_difference == 0


def test_a_policy_with_a_state_of_its_own_is_refused(tmp_path: Path) -> None:
    recurrent = SB3Adapter("RecurrentPPO").build(Still(BOX), seed=0)
    with pytest.raises(SettingsError, match="cannot be exported; put the memory into a backbone"):
        export_agent(recurrent, tmp_path)
