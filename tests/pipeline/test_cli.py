"""The command on the real graph: its table, its exit codes and what survives a kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from archetype_dagster.artifacts import publish_artifact, read_manifest
from archetype_dagster.jobs import Outcome
from archetype_dagster.settings import config_text

REPOSITORY = str(Path(__file__).parents[2])
COMMAND = [sys.executable, "-c", "from archetype_dagster.cli import main; main()"]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    return {**kept, "PYTHONPATH": REPOSITORY, "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}


def archetype(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(finished: tuple[Path, Outcome], tmp_path: Path, tiny: Mapping[str, Any]) -> Path:
    """A working directory with the finished graph in `result` and its settings in `tiny.yaml`."""
    shutil.copytree(finished[0], tmp_path / "result")
    tree = yaml.safe_load(config_text("profiles/smoke.yaml"))
    for name, value in tiny.items():
        *sections, leaf = name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


@pytest.mark.slow
def test_a_run_ends_with_the_table_and_the_path_of_the_report(folder: Path):
    done = archetype(folder, "run", "--pair", "ETH", "--profile", "tiny.yaml", "--no-tracking")
    assert done.returncode == 0, done.stderr
    assert "10 assets materialised, 10 of them reused; 7 checks passed" in done.stdout
    for heading in ("TR %", "ASR", "ACR", "ASoR", "AVOL %", "MDD %"):
        assert heading in done.stdout
    report = next(line for line in done.stdout.splitlines() if line.startswith("Report: ")).removeprefix("Report: ")
    assert Path(report).read_text().lower().startswith("<!doctype html>")
    assert "ETH vq_codebook: reused, nothing changed" in done.stderr
    assert (folder / ".dagster" / "dagster.yaml").is_file()
    assert not (folder / "mlruns").exists()

    again = archetype(folder, "report", "--pair", "ETH")
    assert again.returncode == 0
    assert again.stdout in done.stdout


@pytest.mark.slow
def test_the_phases_are_selections_that_want_the_settings_they_build_on(folder: Path):
    phase3 = archetype(folder, "phase3", "--pair", "ETH", "--profile", "tiny.yaml", "--no-tracking", "--beta1", "0.5")
    assert phase3.returncode == 0, phase3.stderr
    assert "1 assets materialised, 0 of them reused" in phase3.stdout
    manifest = read_manifest(folder / "result" / "ETH" / "phase3_archetype_refinement", kind="refinement_checkpoint")
    assert manifest.settings["refinement.beta_1"] == 0.5

    other = archetype(folder, "evaluate", "--pair", "ETH", "--profile", "tiny.yaml", "--no-tracking")
    assert other.returncode == 1
    assert "refinement.beta_1 = 0.5, not 0.7 as now" in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.slow
def test_a_failed_check_is_named_and_stops_what_follows(folder: Path):
    # A report whose hashes are right and whose ledger is not.
    evaluation = folder / "result" / "ETH" / "evaluation"
    manifest = read_manifest(evaluation, kind="evaluation_report")
    files = {name: (evaluation / name).read_bytes() for name in manifest.files}
    with publish_artifact(evaluation, manifest) as staging:
        for name, payload in files.items():
            (staging / name).write_bytes(payload)
        ledger = pl.read_parquet(staging / "ledger.parquet")
        ledger.with_columns(pl.col("reward") + 1.0).write_parquet(staging / "ledger.parquet")
    done = archetype(folder, "run", "--pair", "ETH", "--profile", "tiny.yaml", "--no-tracking")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: check failed: evaluation_report/ledger_reconciles: rewards sum to")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_weights(folder: Path, finished: tuple[Path, Outcome]):
    shutil.rmtree(folder / "result" / "ETH" / "phase1_archetype_discovery")
    arguments = ["run", "--pair", "ETH", "--profile", "tiny.yaml", "--no-tracking", "--select", "vq_codebook"]
    victim = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    resume = folder / "result" / "ETH" / ".resume" / "vq_codebook.safetensors"
    while not resume.exists():
        assert victim.poll() is None, "the run ended before it could be killed"
    victim.kill()
    victim.wait()
    assert resume.exists()
    done = archetype(folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert not resume.exists()
    for name in ("weights.safetensors", "history.parquet"):
        place = Path("ETH") / "phase1_archetype_discovery" / name
        assert (folder / "result" / place).read_bytes() == (finished[0] / place).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "XRP"], "unknown pair 'XRP'; choose from BNB, BTC, DOT, ETH"),
        (
            ["--profile", "fast"],
            "unknown profile 'fast'; choose from book-table, extended, paper, smoke or name a .yaml file",
        ),
        (["--profile", "nowhere.yaml"], "settings file nowhere.yaml does not exist"),
        (["--set", "planner.horizon=36"], "planner.horizon: Extra inputs are not permitted, got 36"),
        (["--set", "planner.horizon_bars=-1"], "planner.horizon_bars: Input should be greater than or equal to 2"),
        (["--set", "planner.horizon_bars"], "--set needs key=value, got 'planner.horizon_bars'"),
        (["--source", "candles"], "market.source 'candles' needs market.path"),
        (["--select", "codebok"], "cannot select 'codebok'"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: list[str], message: str):
    pair = [] if "--pair" in arguments else ["--pair", "ETH"]
    done = archetype(tmp_path, "run", *pair, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "result").exists()


def test_a_missing_report_says_what_to_run(tmp_path: Path):
    done = archetype(tmp_path, "report", "--pair", "ETH")
    assert done.returncode == 1
    assert "materialise evaluation_report first" in done.stderr


@pytest.mark.slow
def test_ingested_candles_are_bars_of_the_schema(tmp_path: Path, shared_data: Path):
    done = archetype(tmp_path, "ingest", str(shared_data / "spot_5m"), "--pair", "DOT", "--output", "dot.parquet")
    assert done.returncode == 0, done.stderr
    bars = pl.read_parquet(tmp_path / "dot.parquet")
    assert f"{bars.height}" in done.stdout
    assert {"timestamp", "bid25_size", "ask25_price", "book_source", "segment"} <= set(bars.columns)
    assert bars["book_source"].unique().to_list() == ["modelled"]
    assert "largest gaps" in done.stdout


def test_ingesting_a_folder_without_the_pair_lists_what_is_there(tmp_path: Path):
    (tmp_path / "candles").mkdir()
    done = archetype(tmp_path, "ingest", "candles", "--pair", "DOT", "--output", "dot.parquet")
    assert done.returncode == 1
    assert "folder must hold a file with DOTUSDT or DOT in its name" in done.stderr
    assert not (tmp_path / "dot.parquet").exists()
