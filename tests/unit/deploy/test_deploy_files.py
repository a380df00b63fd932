"""The files of a deployment, as far as that can be told without a container engine: they parse, fit and stay closed."""

from __future__ import annotations

import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"
EXTRAS = ("distributed", "kubernetes", "objects")


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = read("compose.yaml")
    return found


def test_ports_are_open_on_loopback_alone(compose: dict[str, Any]) -> None:
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert {name for name, open_ports in ports.items() if open_ports} == {"webserver", "mlflow"}
    assert all(port.startswith("127.0.0.1:") for open_ports in ports.values() for port in open_ports)
    assert compose["networks"]["inside"] == {"internal": True}
    assert all("inside" in service["networks"] for service in compose["services"].values())


def test_what_services_refer_to_is_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        for needed, how in service.get("depends_on", {}).items():
            assert how != {"condition": "service_healthy"} or "healthcheck" in compose["services"][needed]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in compose["volumes"]
        for name, value in service.get("environment", {}).items():
            if value.startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], name


def test_no_secret_stands_in_a_file(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN|KEY|URL", name) or value.startswith("/run/secrets/"), name
    text = "".join(path.read_text() for path in DEPLOY.rglob("*.yaml"))
    assert not re.search(r"://[^/\s]*:[^/\s{$]+@", text)


def test_own_services_have_no_rights_that_they_do_not_need(compose: dict[str, Any]) -> None:
    for name in ("code", "webserver", "daemon", "worker", "mlflow"):
        service = compose["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"]
    for service in compose["services"].values():
        assert re.search(r":\d+\.\d+(\.\d+)?(-\w+)?$", service["image"])


def test_the_image_is_built_from_what_is_pinned_and_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert re.fullmatch(r"ARG BASE=python:3\.11\.\d+-slim-bookworm", next(line for line in lines if "ARG" in line))
    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    assert lines.index("USER 10001:10001") > max(i for i, line in enumerate(lines) if line.startswith("RUN"))
    assert any("--require-hashes --no-deps" in line for line in lines)
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            for source in [word for word in line.split()[1:-1] if not word.startswith("--")]:
                assert (REPOSITORY / source).exists()
                assert f"!{source}" in ignored


def test_the_lock_pins_all_that_is_needed_by_hash_and_names_no_index() -> None:
    text = (DEPLOY / "requirements.lock").read_text()
    assert "://" not in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pins = [re.fullmatch(r"([a-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(pins)
    versions = {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}
    assert len(versions) == len(lines)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for text in [*wanted, *(line for extra in EXTRAS for line in optional[extra])]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), text


def test_the_workers_settings_are_all_known_to_celery() -> None:
    defaults = pytest.importorskip("celery.app.defaults", reason="the distributed extra is not installed")
    config = read("celery.yaml")["execution"]["config"]
    # What is not nested so is ignored without a word.
    assert set(config) == {"config_source"}
    known = set(defaults.DEFAULTS)
    assert set(config["config_source"]) <= known
    sender = read("dagster.yaml")["run_launcher"]["config"]["config_source"]
    assert sender["broker_transport_options"] == config["config_source"]["broker_transport_options"]


def test_the_values_describe_pods_that_kubernetes_knows() -> None:
    job = pytest.importorskip("dagster_k8s.job", reason="the kubernetes extra is not installed")
    values = read("kubernetes/values.yaml")
    pods = values["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    snake = {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): value for name, value in pods.items()}
    config = job.UserDefinedDagsterK8sConfig.from_dict(snake)
    assert config.pod_spec_config["node_selector"] == {"nvidia.com/gpu.present": "true"}
    assert config.container_config["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (code,) = values["dagster-user-deployments"]["deployments"]
    assert code["dagsterApiGrpcArgs"][:2] == ["--module-name", "archetype_dagster.definitions"]
    assert values["dagsterDaemon"]["runMonitoring"]["enabled"]


def test_secrets_reach_a_command_from_files_and_a_missing_one_stops_it(tmp_path: Path) -> None:
    program = str(DEPLOY / "with-secrets")
    (tmp_path / "url").write_text("redis://:pass word@host\n")
    given = {"PATH": "/usr/bin:/bin", "SECRET_FILE_CELERY_BROKER_URL": str(tmp_path / "url")}
    done = subprocess.run(
        ["sh", program, "printenv", "CELERY_BROKER_URL"], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout == "redis://:pass word@host\n"
    (tmp_path / "url").unlink()
    done = subprocess.run(["sh", program, "true"], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "CELERY_BROKER_URL: cannot read" in done.stderr


def test_secrets_are_made_once_and_match_what_compose_wants(tmp_path: Path, compose: dict[str, Any]) -> None:
    program = tmp_path / "make-secrets"
    program.write_bytes((DEPLOY / "make-secrets").read_bytes())
    for _ in range(2):
        subprocess.run(["sh", str(program)], check=True, capture_output=True)
        kept = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {f"secrets/{name}" for name in kept} == {entry["file"] for entry in compose["secrets"].values()}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert re.fullmatch("[0-9a-f]{48}", kept["postgres_password"])
    assert kept["postgres_password"] in kept["dagster_postgres_url"]
    assert kept["celery_url"] == f"redis://:{kept['redis_password']}@redis:6379/0"
