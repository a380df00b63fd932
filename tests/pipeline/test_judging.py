"""What judges a finished graph: baselines, comparison, audit, studies, odds and the pages over all pairs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from archetype_dagster.artifacts import read_json, read_manifest
from archetype_dagster.backtest.crosscheck import engine_versions
from archetype_dagster.cli import TABLES
from archetype_dagster.jobs import WINDOWS, Outcome
from archetype_dagster.pipeline.stages import CORE_STAGES, STAGES
from archetype_dagster.reporting.paper.tables import TABLES_MARKDOWN, TABLES_PAGE
from archetype_dagster.studies.comparison import METHODS

SMALL = {
    "baselines.total_steps": 2_000,
    "baselines.num_envs": 8,
    "baselines.rollout.batch_size": 128,
    "baselines.evaluations": 1,
    "baselines.hidden_sizes": [8],
    "baselines.dqn.buffer_steps": 1_000,
    "baselines.dqn.learning_starts": 200,
    "baselines.recurrent.lookback_bars": 4,
    "baselines.recurrent.hidden_size": 4,
    "studies.seeds": [0, 1],
    "studies.horizons_bars": [12, 16],
    "studies.code_counts": [3, 4],
    "studies.walk_forward_windows": 2,
    "statistics.bootstrap_samples": 20,
    "statistics.overfitting_groups": 4,
    "statistics.overfitting_test_groups": 2,
    "statistics.purge_bars": 12,
    "statistics.embargo_bars": 12,
}
SWEEP = {
    "sweep": {
        "name": "weight",
        "space": {"refinement.beta_2": {"type": "uniform", "low": 0.1, "high": 2.0}},
        "trials": 2,
    }
}
PARTED = {"raw_bars", "walk_forward_window"}
SWEPT = {"sweep_study", "best_settings"}


@pytest.fixture(scope="module")
def judged(finished, run_tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The finished result folder with everything that judges it."""
    root = tmp_path_factory.mktemp("judged") / "result"
    shutil.copytree(finished[0], root)
    run_tiny(root, selection="sweep_study", changes=SWEEP)
    return root, run_tiny(root, selection=TABLES, changes=SMALL)


@pytest.mark.slow
def test_every_stage_that_judges_is_made_and_its_checks_pass(judged):
    _, outcome = judged
    assert outcome.failures == outcome.failed_checks == outcome.warnings == ()
    assert set(outcome.materialised) == set(STAGES) - PARTED - SWEPT - {"onnx_policy", "recent_evaluation"}
    assert set(outcome.reused) == set(CORE_STAGES) - {"onnx_policy", "leaderboard"}


def archetype(folder: Path, *arguments: str, settings: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from archetype_dagster.cli import main; main()", *arguments]
    changed = [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    return subprocess.run(
        [*command, *changed, "--no-tracking"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_makes_the_tables_and_says_where_they_are(judged, tiny, tmp_path):
    root, _ = judged
    made = {path.name: path.read_bytes() for path in (root / "paper_tables").iterdir()}
    settings = {**tiny, **SMALL}
    done = archetype(tmp_path, "report", "--tables", "--pair", "ETH", "--result", str(root), settings=settings)
    assert done.returncode == 0, done.stderr
    assert f"Tables: {root / 'paper_tables' / TABLES_PAGE}" in done.stdout
    assert "paper_tables: reused, nothing changed" in done.stderr
    assert {path.name: path.read_bytes() for path in (root / "paper_tables").iterdir()} == made


@pytest.mark.slow
def test_the_command_goes_on_with_the_other_pairs_and_names_those_without_tables(tmp_path):
    settings = {"market.source": "candles", "market.path": "nowhere"}
    done = archetype(tmp_path, "report", "--tables", settings=settings)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the tables of BTC, ETH, DOT, BNB were not made")
    assert not (tmp_path / "result" / "paper_tables").exists()


@pytest.mark.slow
def test_the_tables_and_the_board_hold_every_method_and_seed(judged):
    root, _ = judged
    page = (root / "paper_tables" / TABLES_PAGE).read_text()
    assert all(label in page for label in METHODS.values())
    assert "modelled" in (root / "paper_tables" / TABLES_MARKDOWN).read_text()
    board = pl.read_parquet(root / "leaderboard" / "methods.parquet")
    assert set(board["method"]) == set(METHODS)
    assert set(board.filter(pl.col("method") == "ppo")["seed"].drop_nulls()) == {0, 1}


@pytest.mark.slow
def test_odds_count_everything_that_was_tried_once(judged):
    root, _ = judged
    names = read_json(root / "ETH" / "robustness" / "robustness.json")["trial_names"]
    # Three embeddings, two more of refinement, one more horizon, one more count of codes, one more seed, and what a
    # sweep on the same bars tried: the settings as they are, and two more.
    assert len(names) == len(set(names)) == 3 + 2 + 1 + 1 + 1 + 3


@pytest.mark.slow
def test_judging_again_reuses_what_took_long(judged, run_tiny):
    root, _ = judged
    again = run_tiny(root, selection="seed_study or walk_forward or robustness or paper_tables", changes=SMALL)
    assert set(again.reused) == {"seed_study", "walk_forward", "robustness", "paper_tables"}


@pytest.mark.slow
def test_a_window_made_on_its_own_is_the_one_that_the_walk_forward_used(judged, define_tiny):
    root, _ = judged
    job = define_tiny(root, SMALL).resolve_job_def(WINDOWS)
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.MultiPartitionKey({"pair": "ETH", "window": "2"})
        assert job.execute_in_process(instance=instance, partition_key=key).success
    window = read_json(root / "ETH" / "walk_forward_window" / "2" / "study.json")["runs"][0]
    whole = read_json(root / "ETH" / "walk_forward" / "walk_forward.json")["windows"][1]
    assert window["key"] == whole["key"]


@pytest.mark.slow
def test_an_audit_is_made_again_where_other_engines_are_installed(judged):
    root, _ = judged
    made_from = read_manifest(root / "ETH" / "trade_audit", kind="trade_audit").parents
    assert {name for name in made_from if name.startswith("engine ")} == {
        f"engine {name}" for name in engine_versions()
    }
