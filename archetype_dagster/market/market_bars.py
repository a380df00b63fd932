"""Bars and the report on them as files of one artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import write_json
from archetype_dagster.market.validation import BarsReport

BARS_FILE: Final = "bars.parquet"
REPORT_FILE: Final = "report.json"


@dataclass(frozen=True)
class MarketBars:
    """Bars and the report on them as they came."""

    bars: pl.DataFrame
    report: BarsReport

    def save(self, directory: Path) -> None:
        """Write bars.parquet and report.json into an existing folder."""
        self.bars.write_parquet(directory / BARS_FILE)
        write_json(directory / REPORT_FILE, self.report.as_dict())
