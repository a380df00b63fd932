"""A specification as an asset and as a command: one work, found again by either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from typer.testing import CliRunner

from archetype_dagster.cli import app
from archetype_dagster.definitions import build_defs, defs
from archetype_dagster.deployment.onnx_agent import OnnxAgent
from archetype_dagster.errors import SettingsError
from archetype_dagster.jobs import PIPELINE, POLICIES, select_stages
from archetype_dagster.policy_training import TrainedPolicy
from archetype_dagster.settings.policy_specs import load_policy_spec, policy_spec_names
from assets.policy_runs import policy_manifest
from resources.compute import ComputeResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

TINY: dict[str, Any] = {
    **{"total_steps": 64, "copies": 1, "scaling.steps": 20, "validation.times": 1, "validation.episodes": 1},
    **{"evaluation.episodes": 2, "environment.lookback_bars": 4, "environment.episode_bars": 10},
    **{"algorithm.learning_starts": 32, "algorithm.train_interval": 16, "backbone.arguments": {"hidden_size": 4}},
}
NAME = "recurrent_portfolio"


def names(job: str) -> set[str]:
    return {key.path[-1] for key in defs.resolve_job_def(job).asset_layer.executable_asset_keys}


def test_each_specification_is_an_asset_of_its_own_outside_a_pairs_graph() -> None:
    graph = defs.resolve_asset_graph()
    expected = {f"policy_{name}" for name in policy_spec_names()}
    assert {key.path[-1] for key in graph.get_all_asset_keys() if graph.get(key).group_name == "policies"} == expected
    assert all(graph.get(dg.AssetKey(name)).partitions_def is None for name in expected)
    assert names(POLICIES) == expected
    assert not names(PIPELINE) & expected
    assert not {key.path[-1] for key in select_stages(defs, "* or group:judging")} & expected
    with pytest.raises(SettingsError, match="cannot select 'policy_patchtst_execution'"):
        select_stages(defs, "policy_patchtst_execution")


def test_another_content_of_the_file_a_backbone_starts_from_is_another_run(tmp_path: Path) -> None:
    file = tmp_path / "pretrained.safetensors"
    spec = load_policy_spec("autoencoder_marketmaking", {"backbone.arguments": {"pretrained_path": str(file)}})
    keys = [policy_manifest(spec, "mine").key]
    for content in (b"first", b"second"):
        file.write_bytes(content)
        keys.append(policy_manifest(spec, "mine").key)
    assert len(set(keys)) == 3


@pytest.mark.slow
def test_the_asset_trains_judges_exports_and_records_and_the_command_finds_it_again(tmp_path: Path) -> None:
    root = tmp_path / "result"
    definitions = build_defs(
        {
            "store": ArtifactStore(root=str(root)),
            "compute": ComputeResource(device="cpu", threads=1),
            "tracking": TrackingResource(),
        }
    )
    config = {"ops": {f"policy_{NAME}": {"config": {"overrides": TINY}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def(POLICIES).execute_in_process(
            run_config=config, instance=instance, asset_selection=[dg.AssetKey(f"policy_{NAME}")]
        )
    (made,) = (event for event in done.all_events if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION)
    metadata = made.step_materialization_data.materialization.metadata
    assert metadata["reused"].value is False
    assert metadata["onnx_max_abs_difference"].value <= 1e-5
    assert "equal_weight" in metadata["policies"].value
    assert "random" in metadata["leads"].value
    assert metadata["curves"].value.startswith("![")
    assert list(Path(metadata["tensorboard"].value).glob("events.out.tfevents.*"))

    folder = root / "policies" / NAME
    policy = TrainedPolicy.load(folder)
    assert policy.spec.total_steps == 64
    assert OnnxAgent.load(folder / "onnx").manifest["action_space"]["shape"] == [6]
    assert not list((root / "policies" / ".resume").glob("*"))
    _check_tracking(tmp_path / "mlruns" / "mlflow.db", metadata["stage_key"].value)

    changes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    again = CliRunner().invoke(app, ["train-policy", NAME, "--result", str(root), "--no-tracking", *changes])
    assert again.exit_code == 0, again.output
    key = policy_manifest(policy.spec, NAME).key
    assert f"Run: {key[:12]}, reused, nothing changed" in again.output
    assert key == metadata["stage_key"].value
    for heading in ("policy", "reward", "low", "high", "total", "lead", "ahead"):
        assert heading in again.output


def _check_tracking(database: Path, key: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    (run,) = client.search_runs([client.get_experiment_by_name("archetype").experiment_id])
    assert run.data.tags["stage_key"] == key
    assert run.data.params["algorithm.name"] == "SAC"
    assert run.info.status == "FINISHED"
    assert {"validation_reward", "evaluation_reward", "ahead_of_equal_weight"} <= run.data.metrics.keys()
    assert [point.step for point in client.get_metric_history(run.info.run_id, "validation_reward")] == [0, 64]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown policy specification 'nothing'; choose from autoencoder_marketmaking"),
        ([NAME, "--set", "environment.cost_rat=0.1"], "cost_rat: Extra inputs are not permitted"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from archetype_dagster.cli import main; main()", "train-policy", *arguments]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
