"""Two machines without a common filesystem: the second takes from object storage what the first has finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from archetype_dagster.artifacts import file_hash
from archetype_dagster.jobs import Outcome
from resources.storage import MIRROR_VARIABLE

STAGES = "market_bars or feature_table"


def published(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): file_hash(path) for path in (root / "ETH").rglob("*") if path.is_file()}


def test_the_second_machine_computes_nothing_again(tmp_path: Path, run_tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "mirror"))
    first: Outcome = run_tiny(tmp_path / "first", selection=STAGES)
    second: Outcome = run_tiny(tmp_path / "second", selection=STAGES)
    assert first.success, first.failures
    assert second.success, second.failures
    assert first.reused == ()
    assert second.reused == ("market_bars", "feature_table")
    assert published(tmp_path / "second") == published(tmp_path / "first")

    # What was computed before there was a mirror is shared once it is reused.
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "later"))
    assert run_tiny(tmp_path / "first", selection="market_bars").reused == ("market_bars",)
    assert run_tiny(tmp_path / "third", selection="market_bars").reused == ("market_bars",)
