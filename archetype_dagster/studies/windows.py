"""The walk-forward of one pair as files of one artifact: the stitched account and what each window did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import polars as pl

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.errors import ArtifactError
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import bars_of
from archetype_dagster.settings import Settings
from archetype_dagster.studies.runs import run_study
from archetype_dagster.studies.walk_forward import stitched, walk_forward_runs
from archetype_dagster.types import JsonDict

WALK_FORWARD_FILE: Final = "walk_forward.json"
LEDGER_FILE: Final = "ledger.parquet"


@dataclass(frozen=True)
class WalkForward:
    """The policy trained again before each window of the test span.

    Attributes:
        facts: `metrics` of the stitched account, `windows` (facts and metrics of each, in order), `trades`.
        ledger: the stitched account, one row per bar.
    """

    facts: JsonDict
    ledger: pl.DataFrame

    @property
    def performance(self) -> Performance:
        """Metrics of the stitched account over the whole span."""
        return Performance.from_dict(self.facts["metrics"])

    @property
    def windows(self) -> dict[str, Performance]:
        """Metrics of each window alone, by the day and hour it begins."""
        return {window["window"]: Performance.from_dict(window) for window in self.facts["windows"]}

    def save(self, directory: Path) -> None:
        """Write walk_forward.json and ledger.parquet into an existing folder."""
        write_json(directory / WALK_FORWARD_FILE, self.facts)
        self.ledger.write_parquet(directory / LEDGER_FILE)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing or damaged."""
        facts = read_json(directory / WALK_FORWARD_FILE)
        if not isinstance(facts, dict) or not facts.keys() >= {"metrics", "windows", "initial_capital"}:
            raise ArtifactError(f"{directory / WALK_FORWARD_FILE} lacks metrics, windows or initial_capital")
        return cls(facts, read_table(directory / LEDGER_FILE))


def walk_forward(settings: Settings, pair: str, cache: StageCache) -> WalkForward:
    """Train before each window, or find what was trained, and stitch the windows' accounts into one.

    Args:
        settings: the run's settings; `studies.walk_forward_windows` equal windows of the test span.
        pair: traded pair.
        cache: where everything trained is kept, so that windows made elsewhere are found.

    Raises:
        SettingsError: a window too short for a horizon.
        ArchetypeError: the computations' own errors.
    """
    results = run_study(walk_forward_runs(settings), pair, cache)
    bars = bars_of(cache.artifact("market_bars", settings, pair))
    ledger: Ledger = stitched(list(results.values()), bars, settings, pair)
    facts = {
        "metrics": ledger.performance(settings.market.bars_per_year).as_dict(),
        "trades": ledger.trades,
        "initial_capital": ledger.initial_capital,
        "hindsight": settings.codebook.hindsight,
        "windows": [{"window": start, **result.as_dict()} for start, result in results.items()],
    }
    return WalkForward(facts, ledger.frame())
