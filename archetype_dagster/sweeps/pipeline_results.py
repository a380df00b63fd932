"""What a sweep over the pipeline found, as files of one artifact: every trial, and the best settings among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import polars as pl
import yaml

from archetype_dagster.artifacts import read_json, read_table, write_bytes_atomically, write_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

SWEEP_FILE: Final = "sweep.json"
RETURNS_FILE: Final = "validation_returns.parquet"
BEST_FILE: Final = "best_settings.json"
RUN_CONFIG_FILE: Final = "run_config.yaml"
UNTUNED: Final = "untuned"


@dataclass(frozen=True)
class PipelineSweep:
    """The trials of a sweep, and the settings as they were before it as one more of them.

    Attributes:
        pair: traded pair.
        sweep: the sweep section of the settings.
        runs: facts of everything that was judged or given up, by name, the first is `UNTUNED`: `key`, `account`,
            `params`, the `changes` of settings that they stand for, `state` (complete or pruned), `value` and, under
            `validation`, the six metrics; of one that was given up the value and the metrics are None.
        failed: number of trials that ended with an error, and so were not judged.
        validation: `timestamp` and the per-bar return on the validation split of each run that was judged, by name.
    """

    pair: str
    sweep: JsonDict
    runs: dict[str, JsonDict]
    failed: int
    validation: pl.DataFrame

    @property
    def best(self) -> str:
        """Name of the run with the highest value, the earliest of equal ones.

        Raises:
            ArtifactError: no run has a value.
        """
        judged = {name: facts["value"] for name, facts in self.runs.items() if facts["value"] is not None}
        if not judged:
            raise ArtifactError(f"no run of sweep {self.sweep['name']} of {self.pair} has a {self.sweep['metric']}")
        return max(judged, key=lambda name: judged[name])

    def save(self, directory: Path) -> None:
        """Write sweep.json and validation_returns.parquet into an existing folder."""
        # A list, because JSON objects are written in the order of their keys and the trials have one of their own.
        rows = [{"run": name, **facts} for name, facts in self.runs.items()]
        write_json(
            directory / SWEEP_FILE, {"pair": self.pair, "sweep": self.sweep, "runs": rows, "failed": self.failed}
        )
        self.validation.write_parquet(directory / RETURNS_FILE)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or lacks a field."""
        saved = read_json(directory / SWEEP_FILE)
        try:
            runs = {row.pop("run"): row for row in saved["runs"]}
            pair, sweep, failed = str(saved["pair"]), saved["sweep"], int(saved["failed"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{directory / SWEEP_FILE} lacks {error}") from error
        return cls(pair, sweep, runs, failed, read_table(directory / RETURNS_FILE))


@dataclass(frozen=True)
class BestSettings:
    """What a sweep changes in the settings.

    Attributes:
        pair: traded pair.
        sweep: the sweep section that they were found with.
        overrides: settings by dotted name; none where no trial did better than the settings as they were.
        value: the best value of the sweep's metric, on the validation split.
        untuned: that of the settings as they were; None where it is undefined.
        trials: number of runs that they were chosen among.
    """

    pair: str
    sweep: JsonDict
    overrides: JsonDict
    value: float
    untuned: float | None
    trials: int

    @classmethod
    def of(cls, found: PipelineSweep) -> Self:
        """The settings of a sweep's best run.

        Raises:
            ArtifactError: no run has a value.
        """
        best = found.runs[found.best]
        return cls(
            pair=found.pair,
            sweep=found.sweep,
            overrides=best["changes"],
            value=best["value"],
            untuned=found.runs[UNTUNED]["value"],
            trials=len(found.runs),
        )

    def save(self, directory: Path) -> None:
        """Write best_settings.json, and run_config.yaml for a run of the graph, into an existing folder."""
        write_json(directory / BEST_FILE, vars(self))
        config = {"resources": {"settings": {"config": {"overrides": self.overrides}}}}
        write_bytes_atomically(directory / RUN_CONFIG_FILE, yaml.safe_dump(config).encode())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where the file is missing, damaged or lacks a field."""
        saved = read_json(directory / BEST_FILE)
        try:
            return cls(**saved)
        except TypeError as error:
            raise ArtifactError(f"{directory / BEST_FILE} does not hold what it should: {error}") from error
