"""Options that several commands share, and the settings they stand for."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings.yaml_text import read_yaml

Pair = Annotated[str, typer.Option("--pair", help="Traded pair: BTC, ETH, DOT or BNB.")]
Profile = Annotated[str, typer.Option("--profile", help="smoke, paper, extended, book-table, or a YAML file.")]
Source = Annotated[str | None, typer.Option("--source", help="synthetic, bars, or a format that ingest --help lists.")]
DataPath = Annotated[Path | None, typer.Option("--path", help="File, folder or glob of the source.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random stream.")]
Result = Annotated[Path, typer.Option("--result", help="Folder of the artifacts.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="One setting, e.g. planner.horizon_bars=36. May be repeated.")
]
NoTracking = Annotated[bool, typer.Option("--no-tracking", help="Do not record the run in MLflow.")]
Tuned = Annotated[bool, typer.Option("--tuned", help="Take the settings that the pair's last sweep found.")]
Horizon = Annotated[int | None, typer.Option("--horizon", help="Horizon h in bars.")]
Trajectories = Annotated[int | None, typer.Option("--num-trajectories", help="Demonstrations.")]
Phase1Epochs = Annotated[int | None, typer.Option("--phase1-epochs", help="Epochs with quantisation.")]
PretrainEpochs = Annotated[int | None, typer.Option("--pretrain-epochs", help="Epochs without quantisation.")]
Phase2Steps = Annotated[int | None, typer.Option("--phase2-total-steps", help="Selection steps.")]
Phase3Steps = Annotated[int | None, typer.Option("--phase3-total-steps", help="Refinement steps.")]
Beta1 = Annotated[float | None, typer.Option("--beta1", help="Regret weight of Eq. (8).")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Adam step size of all three phases.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Batch size of all three phases.")]


def overrides(source: str | None, path: Path | None, seed: int | None, assignments: list[str] | None) -> dict[str, Any]:
    """Settings by dotted key; `assignments` are `key=value` with a YAML value, and win.

    Raises:
        SettingsError: an assignment without a key or with a value that is not YAML.
    """
    chosen: dict[str, Any] = {}
    if source is not None:
        chosen["market.source"] = source
    if path is not None:
        chosen["market.path"] = str(path)
    if seed is not None:
        chosen["seed"] = seed
    for assignment in assignments or []:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise SettingsError(f"--set needs key=value, got {assignment!r}")
        value = read_yaml(text, f"--set {key}: {text!r}")
        # A run's configuration is JSON, which knows no times.
        chosen[key.strip()] = value.isoformat() if isinstance(value, date) else value
    return chosen
