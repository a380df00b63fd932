"""Months of raw bars as partitions: what is made again, what is refused, and that the pair's bars are the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import torch

from archetype_dagster.artifacts import read_json, read_manifest
from archetype_dagster.definitions import build_defs
from archetype_dagster.errors import SettingsError
from archetype_dagster.jobs import MONTHS, Outcome, months_to_run, run_pipeline
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import load_settings
from archetype_dagster.types import NoProgress
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

REPOSITORY = str(Path(__file__).parents[2])
FIVE = timedelta(minutes=5)
FROM_FILES = {"market_bars", "raw_bars"}


def write_candles(folder: Path, name: str, start: datetime, end: datetime) -> None:
    """Five-minute candles in the layout of Binance's archive, with a hole in the middle of each day."""
    count = (end - start) // FIVE
    rows = []
    for number in range(count):
        opened = int((start + number * FIVE).timestamp() * 1000)
        if 140 <= number % 288 < 143:
            continue
        price = 1_600 + (opened // 300_000 % 97) / 7
        rows.append(
            f"{opened},{price},{price + 1},{price - 1},{price + 0.5},{5 + number % 11},{opened + 299_999},0,9,"
            f"{2 + number % 3},0,0"
        )
    (folder / f"ETHUSDT-5m-{name}.csv").write_text("\n".join(rows))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """January and the first ten days of February 2023, in a file a month."""
    folder = tmp_path / "archive"
    folder.mkdir()
    write_candles(folder, "2023-01", datetime(2023, 1, 1, tzinfo=UTC), datetime(2023, 2, 1, tzinfo=UTC))
    write_candles(folder, "2023-02", datetime(2023, 2, 1, tzinfo=UTC), datetime(2023, 2, 10, tzinfo=UTC))
    return folder


def by_month(archive: Path, **changes: Any) -> dict[str, Any]:
    return {"market.source": "binance-klines", "market.path": str(archive), "market.by_month": True, **changes}


def content(root: Path, kind: str) -> str:
    return read_manifest(root / "ETH" / kind, kind=kind.split("/")[0]).content_hash


def test_bars_of_months_are_those_of_one_step_to_the_byte(archive: Path, tmp_path: Path, run_tiny) -> None:
    apart: Outcome = run_tiny(tmp_path / "apart", selection="+market_bars", changes=by_month(archive))
    assert apart.success, apart.failures
    assert apart.materialised == ("raw_bars", "raw_bars", "market_bars")
    one_step = by_month(archive, **{"market.by_month": False})
    whole: Outcome = run_tiny(tmp_path / "whole", selection="+market_bars", changes=one_step)
    assert whole.materialised == ("market_bars",)
    assert content(tmp_path / "apart", "market_bars") == content(tmp_path / "whole", "market_bars")
    manifest = read_manifest(tmp_path / "apart" / "ETH" / "market_bars", kind="market_bars")
    months = ("2023-01", "2023-02")
    assert manifest.parents == {f"raw_bars/{m}": content(tmp_path / "apart", f"raw_bars/{m}") for m in months}

    # A study finds what the graph has published, and makes the months itself where it has not.
    store, settings = ArtifactStore(root=str(tmp_path / "apart")), load_settings("smoke", by_month(archive))
    for published, expected in ((store.directory, {"market_bars", "raw_bars"}), (None, set())):
        cache = StageCache(tmp_path / f"cache{len(expected)}", torch.device("cpu"), NoProgress(), published=published)
        bars = cache.artifact("market_bars", settings.changed({"market.book_levels": 5}), "ETH")
        assert bars.content_hash == content(tmp_path / "whole", "market_bars")
        assert {kind for kind in FROM_FILES if not (cache.root / kind).exists()} == expected


def test_a_new_file_makes_its_month_again_and_no_other(archive: Path, tmp_path: Path, run_tiny) -> None:
    root, changes = tmp_path / "result", by_month(archive)
    assert run_tiny(root, selection="+market_bars", changes=changes).success
    write_candles(archive, "2023-03", datetime(2023, 3, 1, tzinfo=UTC), datetime(2023, 3, 3, tzinfo=UTC))
    more: Outcome = run_tiny(root, selection="+market_bars", changes=changes)
    assert more.materialised == ("raw_bars", "raw_bars", "raw_bars", "market_bars")
    assert more.reused == ("raw_bars", "raw_bars")
    gaps = read_json(root / "ETH" / "market_bars" / "report.json")["gaps"]
    assert any(gap["last_before"].startswith("2023-02-10") and gap["missing_bars"] > 2_000 for gap in gaps)

    # A policy that looks across bars concerns the pair and not its months.
    other: Outcome = run_tiny(
        root, selection="+market_bars", changes=changes | {"market.ingestion.price_outlier": "drop"}
    )
    assert other.reused == ("raw_bars", "raw_bars", "raw_bars")


def test_what_was_made_from_other_months_is_refused_downstream(archive: Path, tmp_path: Path, run_tiny) -> None:
    root, changes = tmp_path / "result", by_month(archive)
    assert run_tiny(root, selection="+feature_table", changes=changes).success
    write_candles(archive, "2023-02", datetime(2023, 2, 1, tzinfo=UTC), datetime(2023, 2, 9, tzinfo=UTC))
    assert run_tiny(root, selection="raw_bars", changes=changes).reused == ("raw_bars",)
    stale: Outcome = run_tiny(root, selection="feature_table", changes=changes)
    assert not stale.success
    assert "but the current raw_bars/2023-02 is" in stale.failures[0]

    shutil.rmtree(root / "ETH" / "raw_bars" / "2023-01")
    missing: Outcome = run_tiny(root, selection="market_bars", changes=changes)
    (line,) = missing.failures
    assert "1 of 2 months of ETH are not made yet, the first is 2023-01" in line


def ingest(
    root: Path, month: str, changes: Mapping[str, Any], instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    definitions = build_defs(
        {
            "settings": SettingsResource(overrides=dict(changes)),
            "store": ArtifactStore(root=str(root)),
            "tracking": TrackingResource(enabled=False),
        }
    )
    job = definitions.resolve_job_def(MONTHS)
    return job.execute_in_process(partition_key=f"{month}-01|ETH", instance=instance, raise_on_error=False)


def test_a_backfill_goes_over_months_without_data(archive: Path, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        # The setting says how the pair's bars are made; months can be made ahead of it.
        changes = by_month(archive, **{"market.by_month": False})
        for month in ("2022-12", "2023-01"):
            assert ingest(tmp_path / "result", month, changes, instance).success
        records = instance.get_materialized_partitions(dg.AssetKey("raw_bars"))
        assert records == {"2022-12-01|ETH", "2023-01-01|ETH"}
    assert read_json(tmp_path / "result" / "ETH" / "raw_bars" / "2022-12" / "report.json") == {}
    assert read_json(tmp_path / "result" / "ETH" / "raw_bars" / "2023-01" / "report.json")["candles"]["bars"] > 4_000


def test_a_market_without_records_has_no_months(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = ingest(tmp_path, "2023-01", {}, instance)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "months are built of a vendor's raw data, got market.source 'synthetic'" in str(
        failure.step_failure_data.user_failure_data
    )
    with pytest.raises(SettingsError, match=r"market\.by_month needs a vendor's source"):
        load_settings("smoke", {"market.by_month": True})


def test_months_are_asked_for_by_the_setting_or_by_name(archive: Path) -> None:
    definitions = build_defs()
    for selection, on, expected in (
        ("*", True, 2),
        ("*", False, 0),
        ("raw_bars", False, 2),
        ("market_bars+", True, 0),
    ):
        settings = load_settings("smoke", by_month(archive, **{"market.by_month": on}))
        assert len(months_to_run(definitions, settings, "ETH", selection)) == expected
    write_candles(archive, "2014-12", datetime(2014, 12, 1, tzinfo=UTC), datetime(2014, 12, 2, tzinfo=UTC))
    settings = load_settings("smoke", by_month(archive))
    with pytest.raises(SettingsError, match="there is no partition for 2014-12"):
        months_to_run(definitions, settings, "ETH", "*")
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(SettingsError, match="made month by month"):
        run_pipeline(definitions, pair="ETH", selection="raw_bars", instance=instance, run_config={}, tags={})


@pytest.mark.slow
def test_the_command_makes_the_months_and_then_the_pair(archive: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from archetype_dagster.cli import main; main()", "run", "--pair", "ETH"]
    source = ["--source", "binance-klines", "--path", str(archive), "--set", "market.by_month=true"]
    done = subprocess.run(
        [*command, *source, "--select", "+market_bars", "--no-tracking"],
        cwd=tmp_path,
        env={"PYTHONPATH": REPOSITORY, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ETH raw_bars 2023-01: computed in" in done.stderr
    assert "ETH raw_bars 2023-02: computed in" in done.stderr
    assert "3 assets materialised, 0 of them reused" in done.stdout
