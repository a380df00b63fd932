"""Raw market data through the command and the graph: what is offered, what is told, what makes a stage run again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
from typer.testing import CliRunner

from archetype_dagster.artifacts import read_json
from archetype_dagster.cli import app
from archetype_dagster.jobs import Outcome
from archetype_dagster.market.sources import source_files
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.pipeline.stages import STAGES, stage_settings
from archetype_dagster.settings import IngestionSettings, MarketSource, VendorSource, load_settings

BARS_72H = "book/standx_perp_btcusd_bars_10min_72h.csv"
SMALL: Mapping[str, Any] = {
    "planner.num_trajectories": 60,
    "codebook.epochs": 2,
    "codebook.hidden_size": 16,
    "selection.total_steps": 3_000,
    "selection.evaluations": 2,
    "refinement.total_steps": 3_000,
    "refinement.hidden_size": 16,
    "refinement.evaluations": 2,
    "evaluation.random_archetype_draws": 2,
    "evaluation.leak_check_cuts": 2,
}


def test_the_settings_name_exactly_the_sources_there_are() -> None:
    assert set(get_args(VendorSource)) == set(SOURCES)
    assert set(get_args(get_args(MarketSource)[0])) == {"synthetic", "bars"}
    assert [source.name for source in SOURCES.values()] == list(SOURCES)


def test_the_help_page_lists_every_source_and_every_policy() -> None:
    done = CliRunner().invoke(app, ["ingest", "--help"], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    for name, source in SOURCES.items():
        assert f"{name}: {source.summary}" in done.output
    for name, field in IngestionSettings.model_fields.items():
        assert f"market.ingestion.{name}: " in done.output
        assert f"default {field.default}" in done.output


def test_ingest_writes_bars_and_tells_every_fault_with_its_policy(tmp_path: Path, shared_data: Path) -> None:
    output = tmp_path / "bars.parquet"
    arguments = [str(shared_data / BARS_72H), "--source", "book-table", "--pair", "BTC", "--output", str(output)]
    done = CliRunner().invoke(app, ["ingest", *arguments], env={"COLUMNS": "160"})
    assert done.exit_code == 0
    bars = pl.read_parquet(output)
    assert bars["book_source"].unique().to_list() == ["observed"]
    assert bars.height == 427
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.output.splitlines()]
    assert ["locked book", "bars", "201", "widen"] in lines
    assert ["one sided trades", "bars", "427", "unknown"] in lines
    assert ["malformed candle", "candles", "1", "skip"] in lines


def test_a_policy_makes_the_bars_again_and_another_place_of_the_files_does_not(
    tmp_path: Path, shared_data: Path
) -> None:
    copy = tmp_path / "copy.csv"
    shutil.copy(shared_data / BARS_72H, copy)

    def key(path: Path, **ingestion: Any) -> dict[str, Any]:
        chosen = {"market.source": "book-table", "market.path": str(path)}
        chosen |= {f"market.ingestion.{name}": value for name, value in ingestion.items()}
        return stage_settings(STAGES["market_bars"], load_settings("smoke", chosen), "BTC")

    assert key(copy) == key(shared_data / BARS_72H)
    assert key(copy) != key(copy, locked_book="drop")
    settings = load_settings("smoke", {"market.source": "book-table", "market.path": str(copy)})
    assert source_files(settings.market, settings.pair("BTC")) == [copy]


@pytest.mark.slow
def test_a_recorded_book_flows_through_the_whole_graph(tmp_path: Path, shared_data: Path, run_tiny) -> None:
    profile = load_settings("book-table").model_dump(mode="json", include={"splits", "planner", "codebook"})
    changes = {f"{section}.{name}": value for section, values in profile.items() for name, value in values.items()}
    source = {"market.source": "book-table", "market.path": str(shared_data / BARS_72H)}
    outcome: Outcome = run_tiny(tmp_path, pair="BTC", changes={**changes, **SMALL, **source})
    assert outcome.success, outcome.failures
    assert outcome.failed_checks == ()
    report = read_json(tmp_path / "BTC" / "market_bars" / "report.json")
    assert report["book_sources"] == ["observed"]
    counted = {(row["fault"], row["unit"]): row["count"] for row in report["ingestion"]["faults"]}
    assert counted["locked_book", "bars"] == 201
    metrics = read_json(tmp_path / "BTC" / "evaluation" / "metrics.json")
    assert (metrics["source"], metrics["book_sources"]) == ("book-table", ["observed"])
    again: Outcome = run_tiny(tmp_path, pair="BTC", changes={**changes, **SMALL, **source})
    assert again.reused == again.materialised
