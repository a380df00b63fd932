"""A trained network with its history as files: weights and construction facts in safetensors, history in Parquet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import polars as pl
from torch import nn

from archetype_dagster.artifacts import read_table
from archetype_dagster.checkpoints import load_tensors, save_tensors
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

HISTORY_FILE: Final = "history.parquet"
Network = TypeVar("Network", bound=nn.Module)


def save_network(directory: Path, file_name: str, network: nn.Module, shape: JsonDict, history: pl.DataFrame) -> None:
    """Write `file_name` (weights, and as facts the arguments that build the network) and history.parquet."""
    save_tensors(directory / file_name, network.state_dict(), shape)
    history.write_parquet(directory / HISTORY_FILE)


def load_network(directory: Path, file_name: str, build: Callable[[JsonDict], Network]) -> tuple[Network, pl.DataFrame]:
    """The network, frozen and in evaluation mode, and its history.

    Args:
        directory: folder written by `save_network`.
        file_name: name of the weights' file in it.
        build: makes the untrained network from the stored facts.

    Raises:
        ArtifactError: a file is missing, damaged or belongs to another network.
    """
    path = directory / file_name
    tensors, facts = load_tensors(path)
    try:
        network = build(facts)
        network.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"{path} holds the weights of another network ({error})") from error
    return network.eval().requires_grad_(False), read_table(directory / HISTORY_FILE)
