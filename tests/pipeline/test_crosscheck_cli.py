"""`archetype audit` and `archetype crosscheck` on a finished graph, honest and with a forged ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from archetype_dagster.artifacts import Manifest, publish_artifact, read_manifest
from archetype_dagster.crosscheck_cli import audit, crosscheck
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.jobs import Outcome

Command = Callable[..., Result]


@pytest.fixture
def command(tiny: Mapping[str, Any]) -> Command:
    """One of the two commands on ETH with the tiny settings; errors come out as they are."""
    app = typer.Typer()
    app.command()(audit)
    app.command()(crosscheck)

    def run(name: str, result: Path, *arguments: str) -> Result:
        given = [word for key, value in tiny.items() for word in ("--set", f"{key}={value}")]
        return CliRunner(env={"COLUMNS": "200"}).invoke(
            app, [name, "--pair", "ETH", "--result", str(result), *given, *arguments], catch_exceptions=False
        )

    return run


@pytest.fixture
def forged(finished: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """The finished results, but the ledger of the evaluation pays a little less at its first trade."""
    result = tmp_path / "result"
    shutil.copytree(finished[0], result)
    folder = result / "ETH" / "evaluation"
    manifest: Manifest = read_manifest(folder, kind="evaluation_report")
    with publish_artifact(folder, manifest) as staging:
        shutil.copytree(finished[0] / "ETH" / "evaluation", staging, dirs_exist_ok=True)
        (staging / "manifest.json").unlink()
        ledger = pl.read_parquet(staging / "ledger.parquet")
        saved = ledger["slippage"] * (ledger["turnover"].cum_sum() > 0).cum_sum().eq(1) / 2
        kept = saved.cum_sum()
        ledger.with_columns(
            slippage=pl.col("slippage") - saved,
            reward=pl.col("reward") + saved,
            cash=pl.col("cash") + kept,
            net_value=pl.col("net_value") + kept,
        ).write_parquet(staging / "ledger.parquet")
    return result


def first_trade(result: Path) -> str:
    ledger = pl.read_parquet(result / "ETH" / "evaluation" / "ledger.parquet")
    return f"{ledger.filter(pl.col('turnover') > 0)['timestamp'][0]:%Y-%m-%d %H:%M}"


def test_the_audit_of_an_honest_evaluation_passes_and_writes_its_files(
    finished: tuple[Path, Outcome], command: Command, tmp_path: Path
) -> None:
    steps, trips = tmp_path / "steps", tmp_path / "trips.csv"
    done = command("audit", finished[0], "--steps", str(steps), "--rows-per-file", "1000", "--trips", str(trips))
    assert done.exit_code == 0, done.output
    assert "fills lie inside the book" in done.output
    assert "profit factor" in done.output
    ledger = pl.read_parquet(finished[0] / "ETH" / "evaluation" / "ledger.parquet")
    assert sum(pl.read_csv(file).height for file in steps.iterdir()) == ledger.height
    assert pl.read_csv(trips)["net_pnl"].sum() == pytest.approx(ledger["reward"].sum(), rel=1e-9, abs=1e-6)


def test_another_engine_agrees_with_an_honest_evaluation(finished: tuple[Path, Outcome], command: Command) -> None:
    done = command("crosscheck", finished[0])
    assert done.exit_code == 0, done.output
    assert "bars agree" in done.output


def test_a_forged_evaluation_is_found_out_by_both(forged: Path, command: Command) -> None:
    audited, checked = command("audit", forged), command("crosscheck", forged)
    assert (audited.exit_code, checked.exit_code) == (1, 1)
    assert first_trade(forged).replace(" ", "T") in audited.output
    assert first_trade(forged) in checked.output


def test_other_settings_than_those_of_the_evaluation_are_refused(
    finished: tuple[Path, Outcome], command: Command
) -> None:
    with pytest.raises(ArtifactError, match="commission_rate"):
        command("crosscheck", finished[0], "--set", "execution.commission_rate=0.001")
    with pytest.raises(SettingsError, match="got engine='excel'"):
        command("crosscheck", finished[0], "--engine", "excel")
