"""The figures printed in the paper, as data."""

from __future__ import annotations

from datetime import date
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from archetype_dagster.settings import config_text
from archetype_dagster.studies.comparison import METHODS, POLICY

PAPER_FILE: Final = "paper_results.yaml"
TABLES: Final = ("table_1", "table_2", "table_3", "table_4")

# Digits of the printed figures may have been rounded or cut off.
_LAST_DIGIT: Final = 0.01


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PrintedMetrics(_Facts):
    """One row's figures on one pair as printed; what a table does not print is None."""

    tr: float = Field(description="Total return, percent.")
    asr: float | None = Field(None, description="Annual Sharpe ratio.")
    acr: float | None = Field(None, description="Annual Calmar ratio.")
    asor: float | None = Field(None, description="Annual Sortino ratio.")
    avol: float | None = Field(None, description="Annual volatility, percent.")
    mdd: float | None = Field(None, description="Maximum drawdown, percent.")

    def as_dict(self) -> dict[str, float | None]:
        """The metrics by the names of `Performance`, as fractions."""
        return {
            "total_return": self.tr / 100,
            "sharpe": self.asr,
            "calmar": self.acr,
            "sortino": self.asor,
            "annual_volatility": None if self.avol is None else self.avol / 100,
            "max_drawdown": None if self.mdd is None else self.mdd / 100,
        }


PrintedTable = dict[str, dict[str, PrintedMetrics]]


class PaperResults(_Facts):
    """Tables 1 to 4; each holds its rows by name, and a row its figures by pair."""

    title: str = Field(description="Title of the paper.")
    doi: str = Field(description="Digital object identifier of the paper.")
    test_start: date = Field(description="First day of the paper's test span.")
    test_end: date = Field(description="Day on which the paper's test span ends.")
    table_1: PrintedTable = Field(description="Methods, by key of METHODS.")
    table_2: PrintedTable = Field(description="Embeddings, without refinement.")
    table_3: PrintedTable = Field(description="Refinement.")
    table_4: PrintedTable = Field(description="Horizons `h=...` and numbers of archetypes `K=...`.")

    @property
    def pairs(self) -> tuple[str, ...]:
        """Pairs of Table 1, in its order."""
        return tuple(self.table_1[POLICY])

    def table(self, name: str) -> PrintedTable:
        """One of `TABLES`."""
        printed: PrintedTable = getattr(self, name)
        return printed

    def broken_identities(self) -> list[tuple[str, str]]:
        """Methods and pairs of Table 1 whose ACR is not ASR AVOL / MDD, by more than their last digit explains."""
        return [
            (name, pair)
            for name, row in self.table_1.items()
            for pair, metrics in row.items()
            if not _calmar_holds(metrics)
        ]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        unknown = sorted(self.table_1.keys() - METHODS.keys())
        if unknown:
            raise ValueError(f"table_1 names unknown methods {', '.join(unknown)}; choose from {', '.join(METHODS)}")
        if POLICY not in self.table_1:
            raise ValueError(f"table_1 lacks {POLICY}")
        for table in TABLES:
            for name, row in self.table(table).items():
                # Table 4 is printed for one pair only.
                if not row or row.keys() - set(self.pairs) or (table != "table_4" and row.keys() != set(self.pairs)):
                    raise ValueError(f"{table}, {name}: must give {', '.join(self.pairs)}, got {', '.join(row)}")
        for name, row in self.table_1.items():
            for pair, metrics in row.items():
                if None in metrics.as_dict().values():
                    raise ValueError(f"table_1, {name}, {pair}: needs all six metrics, got {metrics}")
        return self


def _calmar_holds(metrics: PrintedMetrics) -> bool:
    if metrics.asr is None or metrics.acr is None or metrics.avol is None or metrics.mdd is None:
        return True
    expected = metrics.asr * metrics.avol / metrics.mdd
    largest = (abs(metrics.asr) + _LAST_DIGIT) * (metrics.avol + _LAST_DIGIT) / (metrics.mdd - _LAST_DIGIT)
    return abs(metrics.acr - expected) <= largest - abs(expected) + _LAST_DIGIT


def paper_results() -> PaperResults:
    """The figures shipped in `configs/paper_results.yaml`."""
    raw: dict[str, Any] = yaml.safe_load(config_text(PAPER_FILE))
    return PaperResults.model_validate(raw)
