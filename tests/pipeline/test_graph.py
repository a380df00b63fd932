"""The whole graph on a market small enough to run it many times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dagster as dg
import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

from archetype_dagster.artifacts import MANIFEST_NAME, open_artifact, read_json, read_manifest
from archetype_dagster.backtest import BacktestEngine, spot_instrument
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.deployment import BundleGraphs, OnnxPolicy, OnnxPolicyStrategy, replay_bundle
from archetype_dagster.deployment.streaming_parity import bars_for_rows, stream_bars
from archetype_dagster.jobs import Outcome
from archetype_dagster.pipeline.inputs import bars_of, splits_of
from archetype_dagster.pipeline.stages import CORE_STAGES
from archetype_dagster.reporting import read_ledger
from archetype_dagster.settings import load_settings
from resources.storage import FOLDERS
from resources.tracking import TrackingResource

EVERYTHING = set(CORE_STAGES)
CAUSAL_CHECKS = 7
PUBLISHED_CODE = {
    "planner.gamma": 0.99,
    "codebook.pooling": "attention",
    "codebook.decoder": "bilstm",
    "codebook.decoding": "single_change",
    "codebook.initialisation": "direction_aware",
    "selection.objective": "ppo",
    "refinement.objective": "ppo",
}


@pytest.fixture
def result(finished: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """A copy of the finished graph to change."""
    return Path(shutil.copytree(finished[0], tmp_path / "result"))


def contents(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def test_every_asset_is_materialised_and_every_check_passes(finished: tuple[Path, Outcome]):
    _, outcome = finished
    assert outcome.failures == outcome.failed_checks == outcome.warnings == ()
    assert outcome.success
    assert set(outcome.materialised) == EVERYTHING
    assert outcome.reused == ()
    assert outcome.passed_checks == CAUSAL_CHECKS


def test_artifacts_lie_in_their_folders_and_none_is_a_pickle(finished: tuple[Path, Outcome]):
    root, _ = finished
    folders = {path.parent.relative_to(root).as_posix() for path in root.rglob(MANIFEST_NAME)}
    assert folders == {FOLDERS[kind] if kind == "leaderboard" else f"ETH/{FOLDERS[kind]}" for kind in EVERYTHING}
    kinds = {path.suffix for path in root.rglob("*") if path.is_file() and path.parent.name != ".locks"}
    assert kinds <= {".parquet", ".safetensors", ".json", ".csv", ".html", ".onnx"}
    # A pickle of protocol 2 or later starts with this byte.
    assert not [path for path in root.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\x80"]
    assert not list(root.rglob(".resume/*"))
    assert not list(root.rglob(".staging*"))


def test_manifests_name_settings_parents_and_market(finished: tuple[Path, Outcome]):
    root, _ = finished
    manifests = {kind: read_manifest(root / "ETH" / FOLDERS[kind], kind=kind) for kind in EVERYTHING - {"leaderboard"}}
    for kind, manifest in manifests.items():
        assert manifest.parents == {parent: manifests[parent].content_hash for parent in manifest.parents}
        if kind != "market_bars":
            assert manifest.data_fingerprint == manifests["market_bars"].content_hash
    assert manifests["refinement_checkpoint"].settings["refinement.beta_1"] == 0.7


def test_acr_is_asr_avol_over_mdd_on_every_row(finished: tuple[Path, Outcome]):
    root, _ = finished
    variants = json.loads((root / "ETH" / "evaluation" / "metrics.json").read_text())["variants"]
    assert {"full", "no_refinement", "base_archetype", "random_archetype", "buy_and_hold"} < set(variants)
    for values in variants.values():
        if values["calmar"] is not None:
            expected = values["sharpe"] * values["annual_volatility"] / values["max_drawdown"]
            assert values["calmar"] == pytest.approx(expected, rel=1e-9)


def test_the_bundle_fed_bar_by_bar_trades_the_test_split_as_it_was_judged(finished: tuple[Path, Outcome], tiny):
    folder, settings = finished[0] / "ETH", load_settings("smoke", tiny)
    artifacts = {kind: open_artifact(folder / FOLDERS[kind], kind=kind) for kind in EVERYTHING - {"leaderboard"}}
    bars, test = bars_of(artifacts["market_bars"]), splits_of(artifacts["feature_table"], settings).test
    dates, directory = settings.splits, artifacts["onnx_policy"].directory
    judged = read_ledger(artifacts["evaluation_report"].directory, commission_rate=settings.execution.commission_rate)

    decided = stream_bars(OnnxPolicy.load(directory), bars_for_rows(bars, test))
    assert [one.timestamp.replace(tzinfo=None) for one in decided] == test.timestamps.tolist()
    actions = np.array([one.action for one in decided], dtype=np.int8)
    ledger = SplitAccounts(bars, test, settings, (dates.test_start, dates.test_end)).trade(actions)
    np.testing.assert_array_equal(ledger.action, judged.action)
    np.testing.assert_allclose(ledger.net_value, judged.net_value, rtol=1e-9)
    np.testing.assert_array_equal(replay_bundle(BundleGraphs.load(directory), test), actions)

    engine = BacktestEngine(judged.initial_capital, execution=settings.execution)
    fed = bars_for_rows(bars, test)
    engine.add(spot_instrument("ETH", "USDT"), fed, liquidity_scale=settings.pair("ETH").liquidity_scale)
    result = engine.run(OnnxPolicyStrategy(directory))
    # The evaluation trades nothing on its last bar, where it could only cost.
    common = slice(-min(len(judged), fed.height), -1)
    np.testing.assert_allclose(result.bars["net_value"].to_numpy()[common], judged.net_value[common], rtol=1e-9)


def test_a_second_run_reuses_everything(result: Path, run_tiny):
    before = contents(result)
    outcome = run_tiny(result)
    assert outcome.success
    assert set(outcome.reused) == EVERYTHING
    assert outcome.passed_checks == CAUSAL_CHECKS
    assert contents(result) == before


@pytest.mark.slow
def test_two_fresh_runs_are_byte_identical(finished: tuple[Path, Outcome], tmp_path: Path, run_tiny):
    root, _ = finished
    assert run_tiny(tmp_path / "again").success
    again = contents(tmp_path / "again")
    different = [name for name, payload in contents(root).items() if again.get(name) != payload]
    assert different == []
    assert again.keys() == contents(root).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "recomputed"),
    [
        ({"refinement.beta_1": 0.3}, {"refinement_checkpoint", "onnx_policy", "evaluation_report", "leaderboard"}),
        ({"evaluation.random_archetype_draws": 4}, {"evaluation_report", "leaderboard"}),
        ({"selection.ppo.clip_range": 0.3, "evaluation.leak_check_cuts": 3}, set()),
    ],
)
def test_a_changed_setting_recomputes_exactly_what_depends_on_it(result: Path, run_tiny, change, recomputed):
    outcome = run_tiny(result, changes=change)
    assert outcome.success
    assert EVERYTHING - set(outcome.reused) == recomputed


def test_a_materialisation_carries_tables_pictures_and_its_data_version(result: Path, run_tiny):
    with dg.DagsterInstance.ephemeral() as instance:
        assert run_tiny(result, instance=instance).success
        for kind, pictures in {
            "market_bars": {"price", "quality_picture"},
            "feature_table": {"distributions"},
            "vq_codebook": {"curves", "usage"},
            "selection_checkpoint": {"curves"},
            "refinement_checkpoint": {"curves"},
            "evaluation_report": {"equity", "drawdown", "usage"},
        }.items():
            event = instance.get_latest_materialization_event(dg.AssetKey(kind))
            assert event is not None
            assert event.asset_materialization is not None
            metadata = event.asset_materialization.metadata
            shown = {
                name
                for name, value in metadata.items()
                if "](data:image/png;base64," in str(getattr(value, "value", ""))
            }
            assert shown == pictures
            assert metadata["reused"].value is True
            made = read_manifest(result / "ETH" / FOLDERS[kind], kind=kind)
            assert metadata["content_hash"].value == made.content_hash
            assert (event.asset_materialization.tags or {})["dagster/data_version"] == made.content_hash
        assert "| full |" in metadata["metrics"].value


def test_the_newest_bars_are_evaluated_without_training(result: Path, run_tiny):
    before = {path: path.stat().st_mtime_ns for path in result.rglob("*.safetensors")}
    later: Outcome = run_tiny(result, selection="recent_evaluation", changes={"operations.recent_days": 5})
    assert later.failures == later.failed_checks == ()
    assert later.materialised == ("recent_evaluation",)
    assert any(line.startswith("recent_evaluation/bars_fresh: the newest bar is ") for line in later.warnings)
    assert {path: path.stat().st_mtime_ns for path in result.rglob("*.safetensors")} == before
    facts = read_json(result / "ETH" / "recent_evaluation" / "recent.json")
    assert facts["first_bar"] == "2023-02-05T00:00:00+00:00"
    assert facts["newest_bar"] == "2023-02-09T23:50:00+00:00"
    assert sum(facts["recent_usage"]) in range(50, 61)
    assert pl.read_parquet(result / "ETH" / "recent_evaluation" / "feature_drift.parquet").height == 45
    again: Outcome = run_tiny(result, selection="recent_evaluation", changes={"operations.recent_days": 5})
    assert again.reused == ("recent_evaluation",)


def test_a_replaced_artifact_is_moved_aside(result: Path, run_tiny):
    old = read_manifest(result / "ETH" / "evaluation", kind="evaluation_report")
    run_tiny(result, selection="evaluation_report", changes={"evaluation.random_archetype_draws": 4})
    aside = result / "ETH" / ".superseded" / f"evaluation-{old.key[:12]}"
    assert read_manifest(aside, kind="evaluation_report") == old


@pytest.mark.slow
def test_hindsight_is_reported_and_never_exported(result: Path, run_tiny):
    outcome = run_tiny(result, changes=PUBLISHED_CODE)
    assert outcome.success
    assert EVERYTHING - set(outcome.materialised) == {"onnx_policy"}
    (warning,) = outcome.warnings
    assert warning.startswith("refinement_checkpoint/leak_check: hindsight: ")
    assert outcome.passed_checks == CAUSAL_CHECKS - 2
    assert not (result / "ETH" / "onnx").exists()
    variants = json.loads((result / "ETH" / "evaluation" / "metrics.json").read_text())["variants"]
    assert variants["full"]["hindsight"]
    assert not variants["buy_and_hold"]["hindsight"]


def test_a_damaged_artifact_is_refused_by_what_builds_on_it(result: Path, run_tiny):
    weights = result / "ETH" / FOLDERS["vq_codebook"] / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    before = contents(result)
    outcome = run_tiny(result, selection="archetype_returns", changes={"selection.stride_bars": 6})
    assert not outcome.success
    (failure,) = outcome.failures
    assert "weights.safetensors does not have the hash its manifest states; materialise vq_codebook again" in failure
    assert "Traceback" not in failure
    assert contents(result) == before


def test_a_damaged_artifact_is_made_again_by_its_own_stage(result: Path, run_tiny, finished: tuple[Path, Outcome]):
    weights = result / "ETH" / FOLDERS["vq_codebook"] / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    outcome = run_tiny(result)
    assert outcome.success
    assert EVERYTHING - set(outcome.reused) == {"vq_codebook"}
    assert weights.read_bytes() == (finished[0] / "ETH" / FOLDERS["vq_codebook"] / "weights.safetensors").read_bytes()


def test_a_parent_made_with_other_settings_is_refused(result: Path, run_tiny):
    outcome = run_tiny(result, selection="refinement_checkpoint", changes={"codebook.epochs": 2})
    (failure,) = outcome.failures
    assert "was made with codebook.epochs = 3, not 2 as now" in failure
    assert "materialise vq_codebook again" in failure


def test_a_changed_parent_is_refused(result: Path, run_tiny):
    # The codebook is made anew with the new settings, what lies between it and the refiner is not.
    change = {"codebook.learning_rate": 0.01}
    assert run_tiny(result, selection="vq_codebook", changes=change).success
    (failure,) = run_tiny(result, selection="refinement_checkpoint", changes=change).failures
    assert "was made from vq_codebook" in failure
    assert "materialise archetype_returns again" in failure


def test_too_few_bars_for_one_horizon_is_one_clear_error(tmp_path: Path, run_tiny):
    outcome = run_tiny(tmp_path / "result", changes={"planner.horizon_bars": 5000})
    assert not outcome.success
    (failure,) = outcome.failures
    assert failure.startswith("feature_table: ")
    assert "5000" in failure
    assert [path.name for path in (tmp_path / "result" / "ETH").iterdir()] == ["market_bars"]


@pytest.mark.slow
def test_every_computed_stage_is_one_tracked_run_and_reused_ones_are_none(tmp_path: Path, run_tiny):
    tracking = TrackingResource(experiment="graph")
    phase_one = {"market_bars", "feature_table", "dp_trajectories", "vq_codebook"}
    assert run_tiny(tmp_path / "result", selection="+vq_codebook", tracking=tracking).success
    assert run_tiny(tmp_path / "result", selection="+vq_codebook", tracking=tracking).success
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("graph")
    assert experiment is not None
    runs = {run.data.tags["asset"]: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == phase_one
    assert len(client.search_runs([experiment.experiment_id])) == len(phase_one)
    codebook = runs["vq_codebook"]
    assert codebook.info.status == "FINISHED"
    assert codebook.info.run_name == "ETH vq_codebook"
    assert codebook.data.params["codebook.epochs"] == "3"
    assert codebook.data.metrics["perplexity"] >= 1.0
    assert len(client.get_metric_history(codebook.info.run_id, "codebook/reconstruction")) > 1
    assert "weights.safetensors" in {file.path for file in client.list_artifacts(codebook.info.run_id)}
