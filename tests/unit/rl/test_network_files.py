from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from archetype_dagster.errors import ArtifactError
from archetype_dagster.rl.network_files import load_network, read_table, save_network

HISTORY = pl.DataFrame({"steps": [0, 10], "objective": [None, 0.5]})


def build(facts: dict[str, int]) -> nn.Linear:
    return nn.Linear(facts["inputs"], 2)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_network(tmp_path, "net.safetensors", nn.Linear(3, 2), {"inputs": 3}, HISTORY)
    return tmp_path


def test_loads_the_same_weights_and_history_frozen(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    save_network(tmp_path, "net.safetensors", network, {"inputs": 3}, HISTORY)
    loaded, history = load_network(tmp_path, "net.safetensors", build)
    assert torch.equal(loaded.weight, network.weight)
    assert not loaded.weight.requires_grad
    assert not loaded.training
    assert history.equals(HISTORY)


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_network(tmp_path / name, "net.safetensors", network, {"inputs": 3}, HISTORY)
    for file in ("net.safetensors", "history.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_weights_of_another_network_are_refused(saved: Path) -> None:
    with pytest.raises(ArtifactError, match=r"net\.safetensors holds the weights of another network"):
        load_network(saved, "net.safetensors", lambda facts: nn.Linear(facts["inputs"] + 1, 2))
    with pytest.raises(ArtifactError, match="another network"):
        load_network(saved, "net.safetensors", lambda facts: nn.Linear(facts["features"], 2))


@pytest.mark.parametrize("file", ["net.safetensors", "history.parquet"])
def test_truncated_and_missing_files_are_refused_by_name(saved: Path, file: str) -> None:
    path = saved / file
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=f"{file} is truncated"):
        load_network(saved, "net.safetensors", build)
    path.unlink()
    with pytest.raises(ArtifactError, match=f"{file} does not exist"):
        load_network(saved, "net.safetensors", build)


def test_a_table_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_text("start,label\n1,2\n")
    with pytest.raises(ArtifactError, match="not a Parquet file"):
        read_table(path)
