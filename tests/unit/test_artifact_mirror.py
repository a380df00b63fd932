"""Artifacts in object storage: a local S3 server and a folder behave alike, and damage is never handed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from upath import UPath

from archetype_dagster.artifact_mirror import ArtifactMirror
from archetype_dagster.artifacts import Artifact, Manifest, open_artifact, publish_artifact

KEY = "k" * 64


def manifest(kind: str = "feature_table", key: str = KEY) -> Manifest:
    return Manifest(kind, "ETH", key, {"a": 1}, {"market_bars": "p"}, 0, "1", "d")


def finished(folder: Path, text: str = "bars", key: str = KEY) -> Artifact:
    with publish_artifact(folder, manifest(key=key)) as staging:
        (staging / "table.txt").write_text(text)
        (staging / "plots").mkdir()
        (staging / "plots" / "empty").write_bytes(b"")
    return open_artifact(folder, kind="feature_table")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address of an empty bucket on a local server that speaks S3."""
    pytest.importorskip("s3fs", reason="the objects extra is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        UPath("s3://mirror").mkdir()
        yield "s3://mirror"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactMirror:
    root = str(tmp_path / "mirror") if request.param == "folder" else request.getfixturevalue("s3")
    return ArtifactMirror(f"{root}/{tmp_path.name}")


def test_what_one_machine_published_another_one_gets_to_the_byte(mirror: ArtifactMirror, tmp_path: Path) -> None:
    made = finished(tmp_path / "first" / "feature_table")
    assert mirror.fetch(manifest(), tmp_path / "second" / "feature_table") is None
    assert mirror.publish(made)
    assert not mirror.publish(made)
    got = mirror.fetch(manifest(), tmp_path / "second" / "feature_table")
    assert got is not None
    assert got.manifest == made.manifest
    assert sorted(p.name for p in got.directory.rglob("*")) == ["empty", "manifest.json", "plots", "table.txt"]
    assert (got.directory / "manifest.json").read_bytes() == (made.directory / "manifest.json").read_bytes()
    assert mirror.fetch(manifest(key="other"), tmp_path / "third" / "feature_table") is None
    assert mirror.fetch(manifest(kind="market_bars"), tmp_path / "third" / "market_bars") is None


def test_an_artifact_without_its_manifest_is_not_there(mirror: ArtifactMirror, tmp_path: Path) -> None:
    made = finished(tmp_path / "first" / "feature_table")
    mirror.publish(made)
    (marker,) = UPath(mirror.root, "artifacts").rglob("*.json")
    text = marker.read_bytes()
    marker.unlink()
    assert mirror.fetch(manifest(), tmp_path / "second" / "feature_table") is None
    marker.write_bytes(text[: len(text) // 2])
    assert mirror.fetch(manifest(), tmp_path / "second" / "feature_table") is None
    assert not (tmp_path / "second" / "feature_table").exists()
    assert mirror.publish(made)


@pytest.mark.parametrize("damage", ["other bytes", "missing"])
def test_damaged_bytes_are_not_handed_on_and_can_be_put_right(
    mirror: ArtifactMirror, tmp_path: Path, damage: str
) -> None:
    made = finished(tmp_path / "first" / "feature_table", "x" * 100)
    mirror.publish(made)
    digest = made.manifest.files["table.txt"]
    stored = UPath(mirror.root, "files", digest[:2], digest)
    assert stored.read_bytes() == b"x" * 100
    stored.write_bytes(b"y" * 100) if damage == "other bytes" else stored.unlink()
    target = tmp_path / "second" / "feature_table"
    assert mirror.fetch(manifest(), target) is None
    assert not target.exists()
    assert not list(target.parent.iterdir())
    assert mirror.publish(made)
    assert mirror.fetch(manifest(), target) is not None


def test_two_writers_of_one_key_cannot_mix_their_files(tmp_path: Path) -> None:
    mirror = ArtifactMirror(str(tmp_path / "mirror"))
    first = finished(tmp_path / "first" / "feature_table", "one")
    second = finished(tmp_path / "second" / "feature_table", "two")
    assert mirror.publish(first)
    assert mirror.publish(second)
    got = mirror.fetch(manifest(), tmp_path / "third" / "feature_table")
    assert got is not None
    assert got.content_hash == second.content_hash


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../outside": "0" * 64}},
        {"files": {"/outside": "0" * 64}},
        {"files": {"..\\outside": "0" * 64}},
        {"files": {"table.txt": "../../artifacts/secret"}},
        {"files": ["table.txt"]},
        {"facts": []},
        {"key": "other"},
        {"pair": "BTC"},
        {"schema_version": 99},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    mirror = ArtifactMirror(str(tmp_path / "mirror"))
    mirror.publish(finished(tmp_path / "first" / "feature_table"))
    (marker,) = UPath(mirror.root, "artifacts").rglob("*.json")
    marker.write_text(json.dumps({**asdict(manifest()), **change}))
    assert mirror.fetch(manifest(), tmp_path / "second" / "feature_table") is None
    assert not (tmp_path / "second").exists()
