"""Faults of the machine met by a stage that runs: full and read-only disks, an absent MLflow, a second process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from archetype_dagster.artifacts import MANIFEST_NAME, open_artifact
from archetype_dagster.jobs import Outcome
from resources.tracking import TrackingResource

REPOSITORY = str(Path(__file__).parents[2])
# Publishes a folder of one key again and again, as two runs of one partition would without their lock.
PUBLISHER = """
import sys
from pathlib import Path
from archetype_dagster.artifacts import Manifest, publish_artifact

target, own = Path(sys.argv[1]), sys.argv[2]
for number in range(60):
    key = f"{own}{number}" if sys.argv[3] == "other" else "same"
    manifest = Manifest("market_bars", "ETH", key, {}, {}, 0, "1", "")
    with publish_artifact(target, manifest) as folder:
        for part in range(3):
            (folder / f"{part}.txt").write_text(f"{own}{number}\\n" * 2000)
"""
# Takes the store's lock, as a run does, and counts how often it found another inside.
LOCKED = """
import sys, time
from pathlib import Path
from resources.storage import ArtifactStore

store, inside = ArtifactStore(root=sys.argv[1]), Path(sys.argv[1]) / "inside"
for _ in range(40):
    with store.lock("market_bars", "ETH"):
        assert not inside.exists(), "another process is inside"
        inside.write_text("x")
        time.sleep(0.002)
        inside.unlink()
"""


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": REPOSITORY}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)


@pytest.mark.parametrize("keys", ["same", "other"])
def test_two_processes_that_publish_one_partition_leave_one_whole_artifact(tmp_path: Path, keys: str):
    target = tmp_path / "ETH" / "market_bars"
    writers = [start(PUBLISHER, str(target), own, keys) for own in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    artifact = open_artifact(target, kind="market_bars")
    contents = {(target / name).read_text() for name in artifact.manifest.files}
    assert len(contents) == 1
    assert next(iter(contents)).splitlines()[0] in {"a59", "b59"}
    assert not list(target.parent.glob(".staging*"))


def test_two_processes_never_work_on_one_partition_at_once(tmp_path: Path):
    workers = [start(LOCKED, str(tmp_path)) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]


@pytest.fixture
def read_only(tmp_path: Path):
    """A folder that cannot be written, also not by the superuser."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("the superuser writes everywhere, and here cannot mount a read-only disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_read_only_disk_is_one_clear_line(read_only: Path, run_tiny):
    outcome: Outcome = run_tiny(read_only / "result", selection="market_bars")
    assert not outcome.success
    (line,) = outcome.failures
    assert line.startswith("market_bars: cannot write at ")
    assert "Traceback" not in line


def test_training_goes_on_without_mlflow_and_says_what_is_missing(tmp_path: Path, run_tiny):
    with socket.socket() as closed, dg.DagsterInstance.ephemeral() as instance:
        closed.bind(("127.0.0.1", 0))
        tracking = TrackingResource(tracking_uri=f"http://user:s3cret@127.0.0.1:{closed.getsockname()[1]}")
        outcome: Outcome = run_tiny(tmp_path / "result", selection="market_bars", tracking=tracking, instance=instance)
        assert outcome.success, outcome.failures
        event = instance.get_latest_materialization_event(dg.AssetKey("market_bars"))
        assert event is not None
        assert event.asset_materialization is not None
        missing = str(event.asset_materialization.metadata["mlflow_missing"].value)
        assert missing.startswith("not recorded in MLflow, which did not answer (MlflowException INTERNAL_ERROR): ")
        assert "settings" in missing
        assert "mlflow_run" not in event.asset_materialization.metadata
        said = "\n".join(record.user_message for record in instance.all_logs(outcome.run_id))
        assert missing in said
        assert "s3cret" not in said
    assert (tmp_path / "result" / "ETH" / "market_bars" / MANIFEST_NAME).is_file()
