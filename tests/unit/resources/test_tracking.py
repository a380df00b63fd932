from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from resources.tracking import NoTracker, TrackingResource


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result folder whose store is made once, because making the tables takes seconds."""
    return tmp_path_factory.mktemp("tracking") / "result"


def runs(uri: str, experiment: str) -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id]))


def local(root: Path) -> str:
    return f"sqlite:///{root.parent / 'mlruns' / 'mlflow.db'}"


def record(resource: TrackingResource, root: Path, *, identity: str = "run/vq_codebook/ETH") -> None:
    folder = root / "files"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.txt").write_text("weights")
    with resource.run(identity=identity, name="ETH vq_codebook", tags={"pair": "ETH"}, result_root=root) as tracker:
        tracker.log_params({"codebook.epochs": 3, "codebook.note": "x" * 10_000})
        for step in range(3):
            tracker.log_curve_point(step, {"loss": 1.0 / (step + 1)})
        tracker.log_metrics({"perplexity": 3.5})
        tracker.log_artifacts(folder)


def check_recorded(uri: str, run: Run) -> None:
    client = MlflowClient(tracking_uri=uri)
    assert run.info.status == "FINISHED"
    assert run.data.params["codebook.epochs"] == "3"
    assert run.data.metrics["perplexity"] == 3.5
    curve = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in curve] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["weights.txt"]


def test_the_default_store_lies_beside_the_results(root: Path):
    record(TrackingResource(experiment="default"), root)
    (run,) = runs(local(root), "default")
    check_recorded(local(root), run)
    assert run.info.artifact_uri.startswith((root.parent / "mlruns" / "artifacts").as_uri())


def test_a_retry_goes_on_with_the_same_run(root: Path):
    resource = TrackingResource(experiment="retry")
    with (
        pytest.raises(RuntimeError, match="first attempt"),
        resource.run(identity="a/b/ETH", name="b", tags={}, result_root=root) as tracker,
    ):
        tracker.log_curve_point(0, {"loss": 2.0})
        raise RuntimeError("first attempt")
    (failed,) = runs(local(root), "retry")
    assert failed.info.status == "FAILED"
    assert failed.data.metrics == {"loss": 2.0}
    record(resource, root, identity="a/b/ETH")
    (run,) = runs(local(root), "retry")
    assert run.info.run_id == failed.info.run_id
    assert run.info.status == "FINISHED"
    record(resource, root, identity="another/b/ETH")
    assert len(runs(local(root), "retry")) == 2


def test_an_interruption_ends_the_run_as_killed(root: Path):
    resource = TrackingResource(experiment="interrupted")
    with (
        pytest.raises(KeyboardInterrupt),
        resource.run(identity="a", name="a", tags={}, result_root=root),
    ):
        raise KeyboardInterrupt
    assert [run.info.status for run in runs(local(root), "interrupted")] == ["KILLED"]


def test_long_curves_are_complete(root: Path):
    resource = TrackingResource(experiment="long")
    with resource.run(identity="a", name="a", tags={}, result_root=root) as tracker:
        for step in range(1000):
            tracker.log_curve_point(step, {"loss": float(step)})
    (run,) = runs(local(root), "long")
    history = MlflowClient(tracking_uri=local(root)).get_metric_history(run.info.run_id, "loss")
    assert [point.value for point in history] == list(map(float, range(1000)))


def test_switched_off_it_does_nothing_and_does_not_import_mlflow(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from resources.tracking import TrackingResource\n"
        "with TrackingResource(enabled=False).run(identity='a', name='a', tags={}, result_root=Path('r')) as tracker:\n"
        "    tracker.log_params({'a': 1}); tracker.log_curve_point(0, {'b': 1.0}); tracker.log_metrics({'c': 2.0})\n"
        "    tracker.log_artifacts(Path('.'))\n"
        "assert 'mlflow' not in sys.modules\n"
    )
    repository = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": repository}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
    with TrackingResource(enabled=False).run(identity="a", name="a", tags={}, result_root=tmp_path) as tracker:
        assert isinstance(tracker, NoTracker)


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[str]:
    """A real MLflow server on a free port of the loopback."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{root.parent / 'server.db'}"),
        *("--artifacts-destination", str(root.parent / "server-artifacts")),
    ]
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    uri = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(f"{uri}/health", process)
            yield uri
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    pause = threading.Event()
    for _ in range(240):
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert process.poll() is None, "the MLflow server ended"
            pause.wait(0.5)
    pytest.fail(f"{address} did not answer")


@pytest.mark.slow
def test_a_server_by_uri_records_the_same(root: Path, server: str):
    record(TrackingResource(tracking_uri=server, experiment="served"), root)
    (run,) = runs(server, "served")
    check_recorded(server, run)
    assert (root.parent / "server-artifacts").is_dir()


def test_what_a_store_does_not_take_is_sent_once_it_does(tmp_path: Path):
    folder = tmp_path / "later"
    # Where the store's folder should be, a file is in the way.
    folder.touch()
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    resource = TrackingResource(tracking_uri=uri, experiment="later")
    with resource.run(identity="a", name="a", tags={}, result_root=tmp_path / "result") as tracker:
        tracker.log_params({"codebook.epochs": 3})
        tracker.log_curve_point(0, {"loss": 1.0})
        assert tracker.address is None
        folder.unlink()
        tracker.log_metrics({"perplexity": 3.5})
    assert tracker.missing == ""
    (run,) = runs(uri, "later")
    assert run.info.status == "FINISHED"
    assert run.data.params == {"codebook.epochs": "3"}
    assert run.data.metrics == {"loss": 1.0, "perplexity": 3.5}
    assert run.info.run_id in str(tracker.address)


def test_what_was_never_taken_is_named_without_the_address(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://somebody:s3cret@127.0.0.1:{closed.getsockname()[1]}"
        resource = TrackingResource(tracking_uri=uri)
        with resource.run(identity="a", name="a", tags={}, result_root=tmp_path / "result") as tracker:
            tracker.log_params({"codebook.epochs": 3})
            tracker.log_curve_point(0, {"loss": 1.0})
    assert tracker.missing == (
        "not recorded in MLflow, which did not answer (MlflowException INTERNAL_ERROR): "
        "1 settings, 1 points of curves, 1 the run's end"
    )
