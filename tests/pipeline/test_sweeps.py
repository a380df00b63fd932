"""Sweeps as assets: made only where they are named, recorded trial by trial, and feeding the run after them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from archetype_dagster.cli import run
from archetype_dagster.errors import ArtifactError
from archetype_dagster.jobs import Outcome
from archetype_dagster.settings import load_settings
from archetype_dagster.sweep_cli import sweep, tuned_overrides
from archetype_dagster.sweeps.pipeline_results import UNTUNED, BestSettings, PipelineSweep
from assets.sweeps import sweeps_tried
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

SWEEP = {
    "sweep": {
        "name": "rate",
        "space": {"selection.learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-2}},
        "trials": 2,
        "account": "no_refinement",
    }
}


@pytest.fixture(scope="module")
def swept(run_tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    root = tmp_path_factory.mktemp("sweeps") / "result"
    return root, run_tiny(root, selection="+best_settings", changes=SWEEP, tracking=TrackingResource())


def test_a_sweep_needs_the_bars_alone(swept: tuple[Path, Outcome]) -> None:
    root, outcome = swept
    assert outcome.materialised == ("market_bars", "sweep_study", "best_settings")
    assert outcome.failures == outcome.failed_checks == ()
    found = PipelineSweep.load(root / "ETH" / "sweep_study")
    assert list(found.runs) == [UNTUNED, "trial 0", "trial 1"]
    assert BestSettings.load(root / "ETH" / "best_settings") == BestSettings.of(found)


def test_each_trial_is_a_run_inside_that_of_the_sweep(swept: tuple[Path, Outcome]) -> None:
    root, _ = swept
    client = MlflowClient(tracking_uri=f"sqlite:///{root.parent / 'mlruns' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("archetype").experiment_id])
    trials = {run.data.tags["trial"]: run for run in runs if "trial" in run.data.tags}
    [parent] = [run for run in runs if run.data.tags["asset"] == "sweep_study" and run not in trials.values()]
    found = PipelineSweep.load(root / "ETH" / "sweep_study").runs
    assert trials.keys() == found.keys()
    for name, record in trials.items():
        assert record.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert record.data.metrics["sharpe"] == found[name]["value"]
        assert record.data.params.keys() == found[name]["params"].keys()


def test_more_trials_go_on_from_those_before_and_all_count(swept: tuple[Path, Outcome], run_tiny, tiny) -> None:
    root, _ = swept
    more = {**SWEEP, "sweep.trials": 3}
    assert run_tiny(root, selection="+best_settings", changes=more).reused == ("market_bars",)
    assert run_tiny(root, selection="sweep_study+", changes=more).reused == ("sweep_study", "best_settings")
    longer = PipelineSweep.load(root / "ETH" / "sweep_study")
    assert list(longer.runs) == [UNTUNED, "trial 0", "trial 1", "trial 2"]
    tried = sweeps_tried(ArtifactStore(root=str(root)), load_settings("smoke", {**tiny, **more}), "ETH")
    assert sorted(len(PipelineSweep.load(made.directory).runs) for made in tried.values()) == [3, 4]
    other_dates = load_settings("smoke", {**tiny, **more, "splits.validation_end": "2023-01-31"})
    assert sweeps_tried(ArtifactStore(root=str(root)), other_dates, "ETH") == {}


def test_a_tuned_run_takes_what_the_sweep_found_and_refuses_what_another_market_or_setting_gave(
    swept: tuple[Path, Outcome], tiny, tmp_path: Path
) -> None:
    root, _ = swept
    found = BestSettings.load(root / "ETH" / "best_settings")
    assert found.trials == 4
    assert tuned_overrides("ETH", "smoke", dict(tiny), root) == {**tiny, **found.overrides}
    with pytest.raises(ArtifactError, match=r"was made with execution\.commission_rate"):
        tuned_overrides("ETH", "smoke", {**tiny, "execution.commission_rate": 0.001}, root)
    with pytest.raises(ArtifactError, match="materialise best_settings first"):
        tuned_overrides("BTC", "smoke", dict(tiny), root)


def test_the_command_finds_the_sweep_again_and_a_tuned_run_asks_for_its_settings(
    swept: tuple[Path, Outcome], tiny, tmp_path: Path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rate.yaml").write_text(yaml.safe_dump({**SWEEP["sweep"], "trials": 9}))
    settings = [f"{name}={value}" for name, value in tiny.items()]
    common = {"result": swept[0], "no_tracking": True}
    sweep("ETH", spec="rate.yaml", trials=3, assignments=settings, **common)
    assert "4 tried, 0 of them given up early; 0 failed" in capfd.readouterr().out
    with pytest.raises(ArtifactError, match=r"was made with selection\.alpha = 1\.0, not 0\.5 as now"):
        run("ETH", tuned=True, assignments=[*settings, "selection.alpha=0.5"], **common)
