"""Fixtures shared by the whole suite."""

import os
from pathlib import Path

import pytest

# Workers share the cores; read once, when torch loads, and inherited by every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file on one worker, so that its fixtures are made once, and begin with the files that take long."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real market data; the test is skipped where it is absent."""
    configured = os.environ.get("ARCHETYPE_SHARED_DATA")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real market data not found at {folder}; set ARCHETYPE_SHARED_DATA to its folder")
    return folder
