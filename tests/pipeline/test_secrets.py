"""A run with secrets in its environment leaves no trace of them: not on disk, not on the terminal."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import dagster as dg
import pytest

from archetype_dagster.jobs import Outcome
from resources.alerts import WEBHOOK_VARIABLE, AlertsResource
from resources.tracking import TRACKING_VARIABLE, TrackingResource

SECRETS = {
    WEBHOOK_VARIABLE: "http://127.0.0.1:{port}/hooks/webhook-secret",
    TRACKING_VARIABLE: "http://researcher:mlflow-secret@127.0.0.1:{port}",
    "TARDIS_API_KEY": "tardis-secret",
    "DAGSTER_POSTGRES_URL": "postgresql+psycopg2://dagster:postgres-secret@127.0.0.1:{port}/dagster",
    "CELERY_BROKER_URL": "redis://:redis-secret@127.0.0.1:{port}/0",
    "MLFLOW_TRACKING_PASSWORD": "password-secret",
    "AWS_SECRET_ACCESS_KEY": "bucket-secret",
}
WORDS = [f"{word}-secret" for word in ("webhook", "mlflow", "tardis", "postgres", "redis", "password", "bucket")]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value.format(port=port))


def traces(folder: Path) -> list[str]:
    """Every file below a folder that holds one of the secrets in clear."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [f"{path}: {word}" for path in files for word in WORDS if word.encode() in path.read_bytes()]


@pytest.mark.parametrize("server", [False, True], ids=["local MLflow", "an MLflow that does not answer"])
def test_a_run_leaves_no_trace(
    tmp_path: Path,
    run_tiny,
    secrets: None,
    server: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    if not server:
        monkeypatch.delenv(TRACKING_VARIABLE)
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        outcome: Outcome = run_tiny(
            tmp_path / "result", selection="market_bars", tracking=TrackingResource(), instance=instance
        )
        assert outcome.success, outcome.failures
        (run,) = instance.get_runs()
        assert not [word for word in WORDS if word in str(run.run_config) + str(run.tags)]
    assert (tmp_path / "mlruns" / "mlflow.db").exists() is not server
    AlertsResource(timeout_seconds=1).send("market_bars", "failed")
    said = capfd.readouterr()
    assert not [word for word in WORDS if word in said.out + said.err + caplog.text]
    assert traces(tmp_path) == []


def test_a_trace_would_be_found(tmp_path: Path, secrets: None) -> None:
    (tmp_path / "log").write_bytes(b"\0 tardis-secret \0")
    assert len(traces(tmp_path)) == 1
