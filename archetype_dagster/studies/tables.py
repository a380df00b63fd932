"""The results of one study of one pair as files of one artifact: metrics by run, and the accounts behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import polars as pl

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import Settings
from archetype_dagster.studies.ablations import (
    Study,
    code_count_variants,
    embedding_variants,
    horizon_variants,
    refinement_variants,
)
from archetype_dagster.studies.results import StudyResult
from archetype_dagster.types import JsonDict

RESULTS_FILE: Final = "study.json"
TEST_FILE: Final = "test_net_values.parquet"
VALIDATION_FILE: Final = "validation_returns.parquet"

# The studies of the paper's tables: Table 2, Table 3 and Figure 3, and the two halves of Table 4.
STUDIES: Final[Mapping[str, Callable[[Settings], Study]]] = MappingProxyType(
    {
        "embedding_study": embedding_variants,
        "refinement_study": refinement_variants,
        "horizon_study": horizon_variants,
        "code_count_study": code_count_variants,
    }
)


@dataclass(frozen=True)
class StudyTable:
    """What the runs of a study earned.

    Attributes:
        pair: traded pair.
        runs: facts and test metrics of each run by name, with its validation metrics under `validation`.
        test: `timestamp` and the net value of each run by name, quote units, zero from ruin on.
        validation: `timestamp` and the per-bar return of each run by name, to choose by without the test.
    """

    pair: str
    runs: dict[str, JsonDict]
    test: pl.DataFrame
    validation: pl.DataFrame

    @classmethod
    def of(cls, pair: str, results: Mapping[str, StudyResult]) -> Self:
        """The table of a study's results, all judged on the same bars.

        Raises:
            ValueError: no result, or results on other bars.
        """
        if not results:
            raise ValueError("a study needs at least one result, got none")
        return cls(
            pair=pair,
            runs={name: result.as_dict() for name, result in results.items()},
            test=_by_bar({name: _account(result, "test", "net_value") for name, result in results.items()}),
            validation=_by_bar({name: _account(result, "validation", "returns") for name, result in results.items()}),
        )

    def save(self, directory: Path) -> None:
        """Write study.json, test_net_values.parquet and validation_returns.parquet into an existing folder."""
        # A list, because JSON objects are written in the order of their keys and a study has one of its own.
        rows = [{"run": name, **facts} for name, facts in self.runs.items()]
        write_json(directory / RESULTS_FILE, {"pair": self.pair, "runs": rows})
        self.test.write_parquet(directory / TEST_FILE)
        self.validation.write_parquet(directory / VALIDATION_FILE)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or lacks a field."""
        saved = read_json(directory / RESULTS_FILE)
        try:
            runs = {row.pop("run"): row for row in saved["runs"]}
            pair = str(saved["pair"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{directory / RESULTS_FILE} lacks {error}") from error
        return cls(pair, runs, read_table(directory / TEST_FILE), read_table(directory / VALIDATION_FILE))


def _account(result: StudyResult, split: str, column: str) -> pl.DataFrame:
    part = getattr(result, split)
    values = getattr(part.accounts[result.run.account], column)
    times = pl.Series("timestamp", part.timestamps).dt.replace_time_zone("UTC")
    return pl.DataFrame([times, pl.Series("value", values[-len(times) :])])


def _by_bar(accounts: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    first, *others = accounts.values()
    for other in others:
        if not other["timestamp"].equals(first["timestamp"]):
            raise ValueError("the results of a study must be judged on the same bars")
    return first.select("timestamp", *(account["value"].alias(name) for name, account in accounts.items()))
