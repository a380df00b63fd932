"""Stages on demand: found where they are, computed once, shared by settings that do not change them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.settings import Settings, load_settings
from archetype_dagster.types import NoProgress

SMALL = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-01-20T00:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-01-10T00:00:00Z",
    "splits.validation_start": "2023-01-10T00:00:00Z",
    "splits.validation_end": "2023-01-15T00:00:00Z",
    "splits.test_start": "2023-01-15T00:00:00Z",
    "splits.test_end": "2023-01-20T00:00:00Z",
    "planner.horizon_bars": 12,
    "planner.num_trajectories": 50,
}


def settings(**changes: object) -> Settings:
    return load_settings("smoke", {**SMALL, **changes})


def cache(root: Path) -> StageCache:
    return StageCache(root, torch.device("cpu"), NoProgress())


def test_a_stage_is_computed_once_and_then_found(tmp_path: Path) -> None:
    first = cache(tmp_path).artifact("dp_trajectories", settings(), "ETH")
    before = (first.directory / "manifest.json").stat().st_mtime_ns
    again = cache(tmp_path).artifact("dp_trajectories", settings(), "ETH")
    assert again == first
    assert (again.directory / "manifest.json").stat().st_mtime_ns == before


def test_stages_that_a_setting_does_not_change_are_shared(tmp_path: Path) -> None:
    store = cache(tmp_path)
    store.artifact("dp_trajectories", settings(), "ETH")
    store.artifact("dp_trajectories", settings(**{"planner.num_trajectories": 40}), "ETH")
    assert {kind.name: len(list(kind.iterdir())) for kind in tmp_path.iterdir() if kind.name[0] != "."} == {
        "market_bars": 1,
        "feature_table": 1,
        "dp_trajectories": 2,
    }


def test_an_artifact_of_the_result_folder_is_used_where_it_is_the_one_wanted(tmp_path: Path) -> None:
    made = cache(tmp_path / "first").artifact("market_bars", settings(), "ETH")
    store = StageCache(tmp_path / "second", torch.device("cpu"), NoProgress(), published=lambda *_: made.directory)
    assert store.artifact("market_bars", settings(), "ETH") == made
    assert store.artifact("market_bars", settings(seed=1), "ETH") != made


def test_a_damaged_artifact_is_computed_again(tmp_path: Path) -> None:
    made = cache(tmp_path).artifact("market_bars", settings(), "ETH")
    (made.directory / "bars.parquet").write_bytes(b"damaged")
    assert cache(tmp_path).artifact("market_bars", settings(), "ETH").content_hash == made.content_hash


def test_a_stage_that_needs_the_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="evaluation_report cannot be computed on its own"):
        cache(tmp_path).artifact("evaluation_report", settings(), "ETH")


def test_seeds_may_share_one_market(tmp_path: Path) -> None:
    store = cache(tmp_path)
    base = store.artifact("feature_table", settings(), "ETH")
    assert store.artifact("feature_table", settings(seed=1, **{"market.seed": 0}), "ETH") == base
    other = store.artifact("dp_trajectories", settings(seed=1, **{"market.seed": 0}), "ETH")
    assert other.manifest.parents["feature_table"] == base.content_hash
    assert other.manifest.seed == 1
