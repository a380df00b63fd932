"""Artifacts: whole or absent, and verified when read."""

from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.artifacts import (
    SUPERSEDED_FOLDER,
    Manifest,
    open_artifact,
    publish_artifact,
    read_json,
    read_table,
    stage_key,
    write_json,
)
from archetype_dagster.errors import ArtifactError


def manifest(key: str = "k1", **parents: str) -> Manifest:
    return Manifest(
        kind="vq_codebook",
        pair="ETH",
        key=key,
        settings={"a": 1},
        parents=parents,
        seed=0,
        code_version="1",
        data_fingerprint="d",
    )


def publish(target: Path, text: str, **kwargs: str) -> None:
    with publish_artifact(target, manifest(**kwargs)) as folder:
        (folder / "weights.txt").write_text(text)


def test_what_was_published_is_read_back(tmp_path: Path) -> None:
    publish(tmp_path / "book", "one")
    artifact = open_artifact(tmp_path / "book", kind="vq_codebook")
    assert artifact.path("weights.txt").read_text() == "one"
    assert artifact.manifest.settings == {"a": 1}
    with pytest.raises(ArtifactError, match="holds no other"):
        artifact.path("other.txt")


def test_a_failed_publication_leaves_the_old_artifact_and_no_litter(tmp_path: Path) -> None:
    publish(tmp_path / "book", "one")
    with pytest.raises(RuntimeError), publish_artifact(tmp_path / "book", manifest()) as folder:
        (folder / "weights.txt").write_text("half")
        raise RuntimeError("stopped")
    assert open_artifact(tmp_path / "book", kind="vq_codebook").path("weights.txt").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["book"]


def test_staging_left_by_a_dead_process_is_removed_and_a_live_ones_is_not(tmp_path: Path) -> None:
    dead, live = tmp_path / ".staging-book-99999999-aa", tmp_path / ".staging-book-1-aa"
    dead.mkdir()
    live.mkdir()
    publish(tmp_path / "book", "one")
    assert not dead.exists()
    assert live.exists()


def test_the_same_key_replaces_and_another_key_moves_the_old_one_aside(tmp_path: Path) -> None:
    publish(tmp_path / "book", "one")
    publish(tmp_path / "book", "two")
    assert not (tmp_path / SUPERSEDED_FOLDER).exists()
    publish(tmp_path / "book", "three", key="k2")
    assert (tmp_path / SUPERSEDED_FOLDER / "book-k1" / "weights.txt").read_text() == "two"


def test_the_content_hash_follows_the_bytes_and_not_the_settings(tmp_path: Path) -> None:
    for name, text, key in (("a", "same", "k1"), ("b", "same", "k2"), ("c", "other", "k1")):
        publish(tmp_path / name, text, key=key)
    hashes = [open_artifact(tmp_path / name, kind="vq_codebook").content_hash for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_damaged_missing_or_foreign_artifact_is_refused_with_what_to_run(tmp_path: Path) -> None:
    book = tmp_path / "book"
    with pytest.raises(ArtifactError, match="materialise vq_codebook first"):
        open_artifact(book, kind="vq_codebook")
    publish(book, "one")
    with pytest.raises(ArtifactError, match="expected a 'dp_trajectories'"):
        open_artifact(book, kind="dp_trajectories")
    (book / "weights.txt").write_text("on")
    with pytest.raises(ArtifactError, match=r"weights\.txt does not have the hash"):
        open_artifact(book, kind="vq_codebook")
    (book / "weights.txt").unlink()
    with pytest.raises(ArtifactError, match=r"weights\.txt is missing"):
        open_artifact(book, kind="vq_codebook")
    (book / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="not a readable manifest"):
        open_artifact(book, kind="vq_codebook")


def test_a_changed_parent_is_named(tmp_path: Path) -> None:
    publish(tmp_path / "book", "one", dp_trajectories="old")
    open_artifact(tmp_path / "book", kind="vq_codebook", parents={"dp_trajectories": "old"})
    with pytest.raises(ArtifactError, match=r"made from dp_trajectories old.*is new.*materialise vq_codebook again"):
        open_artifact(tmp_path / "book", kind="vq_codebook", parents={"dp_trajectories": "new"})


def test_the_stage_key_depends_on_every_input() -> None:
    base = {"kind": "a", "pair": "ETH", "settings": {"x": 1}, "parents": {"p": "1"}, "seed": 0, "code_version": "1"}
    changes = {"kind": "b", "pair": "BTC", "settings": {"x": 2}, "parents": {"p": "2"}, "seed": 1, "code_version": "2"}
    keys = {stage_key(**base), *(stage_key(**{**base, name: value}) for name, value in changes.items())}
    assert len(keys) == 1 + len(changes)


def test_json_never_holds_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"sharpe": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    table, facts = tmp_path / "table.parquet", tmp_path / "facts.json"
    for read, file in ((read_table, table), (read_json, facts)):
        with pytest.raises(ArtifactError, match=rf"{file.name} does not exist"):
            read(file)
        file.write_text("{ PAR1")
        with pytest.raises(ArtifactError, match=rf"{file.name} is truncated"):
            read(file)
    pl.DataFrame({"a": [1]}).write_parquet(table)
    assert read_table(table, {"a": pl.Int64()}).height == 1
    with pytest.raises(ArtifactError, match="other columns"):
        read_table(table, {"a": pl.Float64()})
