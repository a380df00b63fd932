from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArchetypeError, ArtifactError, SettingsError
from archetype_dagster.policies import CleanRLAdapter
from archetype_dagster.policy_training import TRAINED, Tasks, TrainedPolicy, train_policy
from archetype_dagster.policy_training.play import even_starts, play
from archetype_dagster.settings.policy_specs import PolicySpec, policy_spec_names
from archetype_dagster.types import NoProgress

Brief = Callable[..., PolicySpec]
CLEAN_RL = {
    "algorithm": {"name": "CleanRL", "rollout_steps": 32, "epochs": 1},
    "backbone": {"alias": "RecurrentBackbone", "features_dim": 8, "arguments": {"hidden_size": 8}},
    "environment.lookback_bars": 4,
}
SMALL = {"backbone.arguments": {"hidden_size": 8}, "environment.lookback_bars": 4, "environment.episode_bars": 10}
BASELINES = {
    "transformer_stock_trading": {"equal_weight", "flat"},
    "recurrent_portfolio": {"equal_weight"},
    "autoencoder_marketmaking": {"avellaneda_stoikov"},
    "patchtst_execution": {"almgren_chriss", "twap"},
}


@pytest.fixture(scope="module")
def trained(brief: Brief, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TrainedPolicy, Path]]:
    """Each shipped specification, trained and saved, and a fifth one with the bridge that none of them uses."""
    specs = {name: brief(name) for name in policy_spec_names()}
    specs["clean_rl"] = brief("patchtst_execution", CLEAN_RL)
    made = {}
    for name, spec in specs.items():
        folder = tmp_path_factory.mktemp(name)
        policy = train_policy(spec, tensorboard=folder / "tensorboard")
        policy.save(folder)
        made[name] = (policy, folder)
    return made


def weights(policy: TrainedPolicy) -> list[torch.Tensor]:
    network: Any = policy.policy.network if isinstance(policy.policy, CleanRLAdapter) else policy.policy
    return list(network.state_dict().values())


@pytest.mark.parametrize("name", [*BASELINES, "clean_rl"])
def test_a_specification_is_trained_and_judged_beside_its_built_in_policies(
    name: str, trained: dict[str, tuple[TrainedPolicy, Path]]
) -> None:
    policy, _ = trained[name]
    baselines = BASELINES.get(name, BASELINES["patchtst_execution"])
    assert list(policy.evaluation.summary) == [TRAINED, *sorted(baselines), "random"]
    episodes = policy.evaluation.episodes
    assert episodes.group_by("policy").len()["len"].to_list() == [3] * (len(baselines) + 2)
    assert episodes["reward"].is_finite().all()
    steps = policy.history["steps"].to_list()
    assert steps[0] == 0
    assert steps[-1] >= 256
    assert policy.history["validation_reward"][0] is not None
    for facts in policy.evaluation.summary.values():
        assert facts["reward_interval"]["low"] <= facts["reward"] <= facts["reward_interval"]["high"]


def test_weights_move_and_those_of_the_best_validation_are_kept(brief: Brief) -> None:
    spec = brief("recurrent_portfolio", {**SMALL, "algorithm.learning_rate": 0.05})
    policy = train_policy(spec)
    scores = policy.history["validation_reward"].to_list()
    assert len(set(scores)) > 1
    validation = Tasks.of(spec).validation
    starts = even_starts(validation, spec.environment, spec.validation.episodes)
    assert play(policy.decide, validation, spec, starts).mean_reward == pytest.approx(max(scores))
    # They are chosen without a look at the held-out window.
    elsewhere = {"evaluation.episodes": 1, "windows.evaluation_start": "2025-03-01T00:00:00Z"}
    again = train_policy(spec.checked(spec.model_dump(), elsewhere, "spec"))
    assert all(torch.equal(a, b) for a, b in zip(weights(policy), weights(again), strict=True))
    other = train_policy(spec.checked(spec.model_dump(), {"seed": 1}, "spec"))
    assert not all(torch.equal(a, b) for a, b in zip(weights(policy), weights(other), strict=True))


_REPEAT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from archetype_dagster.policy_training import Tasks, TrainedPolicy, evaluate
for folder in map(Path, sys.argv[1:]):
    policy = TrainedPolicy.load(folder)
    again = evaluate(policy.decide, Tasks.of(policy.spec).evaluation, policy.spec)
    again.decisions.write_parquet(folder / "again.parquet")
    again.episodes.write_parquet(folder / "episodes_again.parquet")
"""


def test_saved_policies_repeat_their_evaluation_in_a_new_process(
    trained: dict[str, tuple[TrainedPolicy, Path]],
) -> None:
    folders = [str(folder) for _, folder in trained.values()]
    subprocess.run([sys.executable, "-c", _REPEAT, *folders], check=True)
    for name, (policy, folder) in trained.items():
        assert pl.read_parquet(folder / "again.parquet").equals(policy.evaluation.decisions), name
        assert pl.read_parquet(folder / "episodes_again.parquet").equals(policy.evaluation.episodes), name
        read = TrainedPolicy.load(folder)
        assert read.spec == policy.spec
        assert read.history.equals(policy.history)
        assert read.evaluation.summary == policy.evaluation.summary
        written = {path.suffix for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name}
        assert written == {".json", ".parquet", ".safetensors"}


def test_damaged_files_are_refused(trained: dict[str, tuple[TrainedPolicy, Path]], tmp_path: Path) -> None:
    policy, _ = trained["clean_rl"]
    policy.save(tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is not a specification of this version"):
        TrainedPolicy.load(tmp_path)


def test_the_curves_are_event_files(trained: dict[str, tuple[TrainedPolicy, Path]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for policy, folder in trained.values():
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        tag = "score" if isinstance(policy.policy, CleanRLAdapter) else "validation_reward"
        shown = [point.value for point in events.Scalars(tag)]
        scores = policy.history["validation_reward"].drop_nulls().to_numpy()
        np.testing.assert_allclose(shown, scores, rtol=1e-6)


class Killed(BaseException):
    """What no handler may stop."""


class KilledAt(NoProgress):
    """Kills at a report."""

    def __init__(self, report: int) -> None:
        self.left = report

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("recurrent_portfolio", SMALL),
        ("recurrent_portfolio", {**SMALL, "algorithm.entropy_weight": 0.1, "scaling": None}),
        ("patchtst_execution", {"environment.lookback_bars": 32}),
        ("patchtst_execution", CLEAN_RL),
    ],
)
def test_a_training_killed_twice_ends_with_the_very_same_weights(
    name: str, changes: dict[str, Any], brief: Brief, tmp_path: Path
) -> None:
    spec = brief(name, changes)
    whole = train_policy(spec)
    resume = ResumePoint(tmp_path / "state.safetensors", spec.content_hash)
    for report in (1, 0):
        with pytest.raises(Killed):
            train_policy(spec, resume=resume, progress=KilledAt(report))
    resumed = train_policy(spec, resume=resume)
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))
    assert resumed.history.equals(whole.history)
    assert resumed.evaluation.decisions.equals(whole.evaluation.decisions)


@pytest.mark.parametrize("name", ["recurrent_portfolio", "patchtst_execution"])
def test_a_diverged_training_says_so(name: str, brief: Brief) -> None:
    changes = SMALL if name == "recurrent_portfolio" else CLEAN_RL
    with pytest.raises(ArchetypeError, match="diverged before step"):
        train_policy(brief(name, {**changes, "algorithm.learning_rate": 1e30}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone.alias": "Mamba"}, "unknown backbone 'Mamba'"),
        ({"backbone.arguments": {"units": 3}}, "takes no backbone_kwargs .'units'."),
    ],
)
def test_backbones_and_arguments_that_there_are_not_are_refused(
    changes: dict[str, Any], message: str, brief: Brief
) -> None:
    with pytest.raises(SettingsError, match=message):
        train_policy(brief("recurrent_portfolio", {**SMALL, **changes}))
