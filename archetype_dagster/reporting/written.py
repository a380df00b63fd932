"""Reports read back from the files they were written to."""

from __future__ import annotations

from pathlib import Path

from archetype_dagster.artifacts import read_json, read_table
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.reporting.plots import ArchetypeExample
from archetype_dagster.reporting.report import EXAMPLES_FILE, LEDGER_FILE, METRICS_FILE
from archetype_dagster.types import JsonDict


def read_metrics(directory: Path) -> JsonDict:
    """The metrics.json of a report written by `write_report`.

    Raises:
        ArtifactError: missing or damaged.
    """
    metrics: JsonDict = read_json(directory / METRICS_FILE)
    return metrics


def read_examples(directory: Path) -> list[ArchetypeExample]:
    """The example horizons of the report, in its order.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    frame = read_table(directory / EXAMPLES_FILE)
    return [
        ArchetypeExample(
            code=part["code"][0],
            title=part["title"][0],
            mark=part["mark"].to_numpy(),
            actions=part["action"].to_numpy(),
            initial_action=part["initial_action"][0],
        )
        for part in frame.partition_by("example", maintain_order=True)
    ]


def read_ledger(directory: Path, *, commission_rate: float) -> Ledger:
    """The full policy's ledger as it was written, for an audit that does not trust who wrote it.

    Args:
        directory: folder of a report written by `write_report`.
        commission_rate: commission of the run, as a fraction of the traded notional.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    frame = read_table(directory / LEDGER_FILE)
    summary = read_metrics(directory)
    return Ledger.from_frame(
        frame,
        initial_capital=summary["initial_capital"],
        max_position=summary["max_position"],
        commission_rate=commission_rate,
        ruined=summary["variants"]["full"]["ruined"],
    )
