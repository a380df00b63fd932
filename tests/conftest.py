"""Fixtures shared by the whole suite."""

import os
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Workers share the cores; read once, when torch loads, and inherited by every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class FilesAndBlocks(LoadScopeScheduling):
    """A file stays on one worker, so that its fixtures are made once; the README's blocks share none."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "test_readme.py" in nodeid else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return FilesAndBlocks(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real market data; the test is skipped where it is absent."""
    configured = os.environ.get("ARCHETYPE_SHARED_DATA")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real market data not found at {folder}; set ARCHETYPE_SHARED_DATA to its folder")
    return folder
