"""A market, networks and budgets so small that the whole graph runs in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from archetype_dagster.definitions import build_defs
from archetype_dagster.jobs import Outcome, months_to_run, run_pipeline
from archetype_dagster.settings import load_settings
from resources.compute import ComputeResource
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

TINY: Mapping[str, Any] = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-02-10T00:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-01-25T00:00:00Z",
    "splits.validation_start": "2023-01-25T00:00:00Z",
    "splits.validation_end": "2023-02-01T00:00:00Z",
    "splits.test_start": "2023-02-01T00:00:00Z",
    "splits.test_end": "2023-02-10T00:00:00Z",
    "planner.horizon_bars": 12,
    "planner.num_trajectories": 400,
    "codebook.num_codes": 4,
    "codebook.code_dim": 4,
    "codebook.hidden_size": 16,
    "codebook.epochs": 3,
    "codebook.batch_size": 64,
    "selection.total_steps": 12_000,
    "selection.stride_bars": 12,
    "selection.evaluations": 2,
    "refinement.total_steps": 6_000,
    "refinement.hidden_size": 16,
    "refinement.evaluations": 2,
    "evaluation.random_archetype_draws": 3,
    "evaluation.leak_check_cuts": 2,
}
Materialise = Callable[..., Outcome]


def run_graph(
    root: Path,
    *,
    pair: str = "ETH",
    selection: str = "*",
    changes: Mapping[str, Any] | None = None,
    tracking: TrackingResource | None = None,
    instance: dg.DagsterInstance | None = None,
) -> Outcome:
    """Run a selection of the graph with the tiny settings and `changes` in the result folder `root`."""
    overrides = {**TINY, **(changes or {})}
    definitions = define_graph(root, changes, tracking)
    months = months_to_run(definitions, load_settings("smoke", overrides), pair, selection)
    with nullcontext(instance) if instance else dg.DagsterInstance.ephemeral() as used:
        return run_pipeline(
            definitions, pair=pair, selection=selection, instance=used, run_config={}, tags={}, months=months
        )


def define_graph(
    root: Path, changes: Mapping[str, Any] | None = None, tracking: TrackingResource | None = None
) -> dg.Definitions:
    """The code location with the tiny settings and `changes` over the result folder `root`."""
    return build_defs(
        {
            "settings": SettingsResource(overrides={**TINY, **(changes or {})}),
            "store": ArtifactStore(root=str(root)),
            "compute": ComputeResource(device="cpu", threads=1),
            "tracking": tracking or TrackingResource(enabled=False),
        }
    )


@pytest.fixture(scope="session")
def tiny() -> Mapping[str, Any]:
    """The tiny settings by dotted name."""
    return TINY


@pytest.fixture(scope="session")
def define_tiny() -> Callable[..., dg.Definitions]:
    """`define_graph` as a fixture."""
    return define_graph


@pytest.fixture(scope="session")
def run_tiny() -> Materialise:
    """`run_graph` as a fixture."""
    return run_graph


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A result folder with the whole tiny graph in it; tests must leave it as it is."""
    root = tmp_path_factory.mktemp("finished") / "result"
    return root, run_graph(root)
