"""The command measures all four metrics, goes on with what it trained, and its exit code is the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from archetype_dagster.acceptance.hpo import _relative_gains
from archetype_dagster.acceptance_cli import acceptance
from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import AcceptanceSettings, load_settings, named_mapping, shipped_names
from archetype_dagster.sweeps.pipeline_space import search_space


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("acceptance")


def measured(folder: Path, output: str) -> tuple[dict[str, Any], int]:
    code = 0
    try:
        acceptance(quick=True, data=folder / "nothing here", result=folder / "result", output=folder / output)
    except typer.Exit as ending:
        code = ending.exit_code
    return json.loads((folder / output).read_text()), code


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[dict[str, Any], int]:
    return measured(folder, "first.json")


def test_every_metric_has_target_value_interval_seeds_and_verdict(first: tuple[dict[str, Any], int]) -> None:
    report, code = first
    assert list(report["metrics"]) == ["convergence", "hpo_gain", "hpo_wall_time", "onnx_pnl_error"]
    for metric in report["metrics"].values():
        assert metric.keys() >= {"target", "measured", "interval", "interval_of", "seeds", "verdict"}
    verdicts = [metric["verdict"] for metric in report["metrics"].values()]
    assert report["passed"] == all(verdict == "passed" for verdict in verdicts)
    assert code == (0 if report["passed"] else 1)


def test_the_exported_policy_earns_what_the_trained_one_does(first: tuple[dict[str, Any], int]) -> None:
    told = first[0]["metrics"]["onnx_pnl_error"]
    assert told["by_seed"]["0"]["bars"] == 200
    assert told["by_seed"]["0"]["profit_of_policy"] != 0
    assert told["measured"] < 1e-6


def test_the_signal_is_stated_and_missing_prices_are_null_with_a_reason(first: tuple[dict[str, Any], int]) -> None:
    told = first[0]["metrics"]["convergence"]
    assert told["market"]["signal_strength"] == load_settings("smoke").market.synthetic.signal_strength
    assert 0 < told["steps"] <= 100_000
    assert told["real"]["measured"] is None
    assert "nothing here" in told["real"]["reason"]


def test_a_second_call_measures_the_same_and_times_a_sweep_that_was_interrupted_anew(
    first: tuple[dict[str, Any], int], folder: Path
) -> None:
    trained = {path: path.stat().st_mtime_ns for path in (folder / "result" / "stages").rglob("manifest.json")}
    [seconds] = (folder / "result").glob("sweep-*/seconds.json")
    earlier = {**json.loads(seconds.read_text()), "commit": "earlier"}
    seconds.write_text(json.dumps(earlier))
    told = measured(folder, "found.json")[0]["metrics"]["hpo_wall_time"]
    assert (told["seconds"], told["commit"]) == (earlier["seconds"], "earlier")
    seconds.unlink()
    again, _ = measured(folder, "second.json")
    timed = [metrics.pop("hpo_wall_time") for metrics in (again["metrics"], first[0]["metrics"])]
    assert again["metrics"] == first[0]["metrics"]
    assert timed[0]["trials"] == timed[1]["trials"] == {"complete": 2, "pruned": 0, "failed": 0}
    assert timed[0]["seconds"] != timed[1]["seconds"]
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


def test_gains_are_over_the_baselines_mean() -> None:
    assert _relative_gains({0: 1.0, 1: 3.0}, {0: 2.0, 1: 3.0}) == {0: 0.5, 1: 0.0}
    assert _relative_gains({0: 1.0, 1: -3.0}, {0: 2.0, 1: 3.0}) == {0: None, 1: None}
    assert _relative_gains({0: 1.0, 1: 3.0}, {0: 2.0, 1: None}) == {0: None, 1: None}


@pytest.mark.parametrize("name", shipped_names("acceptance"))
def test_every_shipped_form_loads_and_its_trials_can_be_drawn(name: str) -> None:
    settings = AcceptanceSettings.checked(named_mapping(name, "acceptance", kind="acceptance"), {}, name)
    baseline = load_settings(settings.profile, settings.overrides)
    assert search_space(settings.sweep)
    assert settings.sweep_run_seed not in settings.seeds
    assert baseline.selection.total_steps + baseline.refinement.total_steps <= settings.max_steps


def test_the_full_form_is_what_is_asked_for() -> None:
    settings = AcceptanceSettings.checked(named_mapping("full", "acceptance", kind="acceptance"), {}, "full")
    assert len(settings.seeds) >= 5
    assert (settings.sweep.trials, settings.sweep.jobs, settings.sweep.pruner) == (100, 8, "none")
    assert (settings.least_sharpe, settings.least_gain, settings.most_pnl_error) == (1.0, 0.2, 0.05)
    assert (settings.max_steps, settings.most_hours) == (100_000, 3.0)


def test_an_unknown_setting_of_the_acceptance_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text("sweep: {name: x, space: {selection.alpha: {type: uniform, low: 0, high: 1}}}\ntrails: 3\n")
    with pytest.raises(SettingsError, match="trails: Extra inputs are not permitted"):
        acceptance(spec=spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sweep_run_seed": 1}, "sweep_run_seed must be none of seeds"), ({"seeds": [3, 3]}, "seeds must differ")],
)
def test_seeds_that_would_flatter_the_gain_or_its_interval_are_refused(changes: dict[str, Any], message: str) -> None:
    tree = named_mapping("quick", "acceptance", kind="acceptance")
    with pytest.raises(SettingsError, match=message):
        AcceptanceSettings.checked({**tree, **changes}, {}, "acceptance")
