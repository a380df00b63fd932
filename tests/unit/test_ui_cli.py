from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import load_settings
from archetype_dagster.ui_cli import backfill, code_location_environment, month_range
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.ui_client import UiError


class Ui(BaseHTTPRequestHandler):
    """Answers every backfill with success and keeps what it was asked."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body["variables"]["params"])
        told = {"data": {"launchPartitionBackfill": {"__typename": "LaunchBackfillSuccess", "backfillId": "abc"}}}
        answer = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    Ui.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ui)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "ui.json").write_text(json.dumps({"address": f"http://127.0.0.1:{server.server_address[1]}"}))
    yield Ui.asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_backfill_names_job_partitions_settings_and_limits(asked, capsys: pytest.CaptureFixture[str]):
    backfill(pairs="ETH, BTC", profile="paper", assignments=["seed=3"], max_hours=1.5, retries=7)
    (params,) = asked
    assert params["selector"]["partitionSetName"] == "train_pair_partition_set"
    assert params["partitionNames"] == ["ETH", "BTC"]
    assert params["runConfigData"] == {
        "resources": {"settings": {"config": {"profile": "paper", "overrides": {"seed": 3}}}}
    }
    tags = {tag["key"]: tag["value"] for tag in params["tags"]}
    assert tags == {"archetype/reason": "backfill", "dagster/max_runtime": "5400", "dagster/max_retries": "7"}
    assert "2 runs of train_pair asked for" in capsys.readouterr().out


def test_months_are_partitions_of_their_own_job(asked):
    backfill(pairs="ETH", months="2023-12..2024-01")
    (params,) = asked
    assert params["selector"]["partitionSetName"] == "ingest_months_partition_set"
    assert params["partitionNames"] == ["2023-12-01|ETH", "2024-01-01|ETH"]
    assert params["runConfigData"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": "ETH,XRP"}, r"--pairs must name some of BTC, ETH, DOT, BNB, got 'ETH,XRP'"),
        ({"pairs": " , "}, r"--pairs must name some of"),
        ({"job": "ingest"}, r"--job must be train_pair, refresh_pair or pipeline, got 'ingest'"),
        ({"job": "pipeline", "months": "2024-01"}, r"--months has a job of its own"),
        ({"months": "2024-13"}, r"--months must be YYYY-MM or YYYY-MM\.\.YYYY-MM, got '2024-13'"),
        ({"months": "2024-02..2024-01"}, r"--months must not end before they begin"),
    ],
)
def test_mistakes_are_refused_before_anything_is_asked(asked, options: dict[str, str], message: str):
    with pytest.raises(SettingsError, match=message):
        backfill(**options)
    assert asked == []


def test_a_range_of_months_holds_both_ends():
    assert month_range("2024-06") == ["2024-06"]
    assert month_range("2023-11..2024-02") == ["2023-11", "2023-12", "2024-01", "2024-02"]


def test_without_a_running_ui_it_says_what_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with pytest.raises(UiError, match="start `archetype ui` first"):
        backfill(pairs="ETH")
    (tmp_path / "ui.json").write_text('{"address": "http://127.0.0.1:9"}')
    with pytest.raises(UiError, match="does not answer"):
        backfill(pairs="ETH")


def test_the_processes_are_told_settings_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    told = code_location_environment(tmp_path, "smoke", {"seed": 3}, Path("out"))
    assert told == {
        "ARCHETYPE_SETTINGS": str(tmp_path / "settings.yaml"),
        "ARCHETYPE_RESULT": str(tmp_path / "out"),
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert SettingsResource().load() == load_settings("smoke", {"seed": 3})
    assert SettingsResource(overrides={"seed": 4}).load().seed == 4
    assert SettingsResource(profile="paper").load() == load_settings("paper")
    assert ArtifactStore().path == tmp_path / "out"
    assert ArtifactStore(root=str(tmp_path / "elsewhere")).path == tmp_path / "elsewhere"


def test_without_a_wish_the_processes_are_told_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("ARCHETYPE_SETTINGS", "ARCHETYPE_RESULT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    plain = code_location_environment(tmp_path, None, {}, None)
    assert plain == {"ARCHETYPE_SETTINGS": "smoke", "ARCHETYPE_RESULT": str(tmp_path / "result")}
    monkeypatch.setenv("ARCHETYPE_SETTINGS", "paper")
    assert code_location_environment(tmp_path, None, {}, None)["ARCHETYPE_SETTINGS"] == "paper"
    with pytest.raises(SettingsError, match="unknown profile 'papre'"):
        code_location_environment(tmp_path, "papre", {}, None)
