"""The `archetype` command: the graph in this process, with live bars and a closing table.

Everything heavy is imported inside the commands, so that `--help` is immediate.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archetype_dagster import cli_options as options
from archetype_dagster.acceptance_cli import acceptance
from archetype_dagster.calibrate_cli import app as calibrate_app
from archetype_dagster.cli_runs import materialise, print_error, print_report
from archetype_dagster.crosscheck_cli import audit, crosscheck
from archetype_dagster.errors import ArchetypeError, SettingsError
from archetype_dagster.fetch_cli import app as fetch_app
from archetype_dagster.ingest_cli import IngestCommand, ingest
from archetype_dagster.paper_cli import paper
from archetype_dagster.settings import PAIRS
from archetype_dagster.sweep_cli import sweep, tuned_overrides
from archetype_dagster.train_policy_cli import train_policy
from archetype_dagster.ui_cli import backfill, ui

# Everything that the paper's tables and the judgement beside them are made from.
TABLES = "+robustness or +walk_forward or +trade_audit or leaderboard or paper_tables"

_console = Console()

app = typer.Typer(
    name="archetype",
    help="ArchetypeTrader as a graph of assets: discover, select and refine trading archetypes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(calibrate_app, name="calibrate")
app.add_typer(fetch_app, name="fetch")


@app.command()
def run(
    pair: options.Pair,
    profile: options.Profile = "smoke",
    source: options.Source = None,
    path: options.DataPath = None,
    select: Annotated[str, typer.Option("--select", help="Stages to run, e.g. vq_codebook+.")] = "*",
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    seed: options.Seed = None,
    no_tracking: options.NoTracking = False,
    tuned: options.Tuned = False,
) -> None:
    """Materialise the graph for one pair; what nothing changed is reused.

    With --set market.by_month=true a vendor's files are read month by month first, and only the months that changed.
    """
    overrides = options.overrides(source, path, seed, assignments)
    if tuned:
        overrides = tuned_overrides(pair, profile, overrides, result)
    materialise(pair, profile, overrides, select, result, tracking=not no_tracking)


def _phase_command(name: str, selection: str, summary: str) -> None:
    def phase(
        pair: options.Pair,
        profile: options.Profile = "smoke",
        source: options.Source = None,
        path: options.DataPath = None,
        assignments: options.Assignments = None,
        result: options.Result = Path("result"),
        seed: options.Seed = None,
        no_tracking: options.NoTracking = False,
        horizon: options.Horizon = None,
        num_trajectories: options.Trajectories = None,
        phase1_epochs: options.Phase1Epochs = None,
        pretrain_epochs: options.PretrainEpochs = None,
        phase2_total_steps: options.Phase2Steps = None,
        phase3_total_steps: options.Phase3Steps = None,
        beta1: options.Beta1 = None,
        lr: options.LearningRate = None,
        batch_size: options.BatchSize = None,
    ) -> None:
        flags = {
            "planner.horizon_bars": horizon,
            "planner.num_trajectories": num_trajectories,
            "codebook.epochs": phase1_epochs,
            "codebook.pretrain_epochs": pretrain_epochs,
            "selection.total_steps": phase2_total_steps,
            "refinement.total_steps": phase3_total_steps,
            "refinement.beta_1": beta1,
            **{f"{section}.learning_rate": lr for section in ("codebook", "selection", "refinement")},
            **{f"{section}.batch_size": batch_size for section in ("codebook", "selection", "refinement")},
        }
        given = {key: value for key, value in flags.items() if value is not None}
        overrides = {**given, **options.overrides(source, path, seed, assignments)}
        materialise(pair, profile, overrides, selection, result, tracking=not no_tracking)

    app.command(name, help=summary)(phase)


_phase_command("phase1", "+vq_codebook", "Discover archetypes: everything up to the codebook.")
_phase_command("phase2", "archetype_returns or selection_checkpoint", "Train the selector on the codebook of phase1.")
_phase_command("phase3", "refinement_checkpoint", "Train the refiner on the selector of phase2.")
_phase_command(
    "evaluate", "onnx_policy or evaluation_report or leaderboard", "Export and evaluate the policy of phase3."
)


@app.command()
def report(
    pair: Annotated[
        str | None, typer.Option("--pair", help="Traded pair; with --tables all pairs if left out.")
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Make the paper's tables: baselines, studies, odds. Takes long.")
    ] = False,
    profile: options.Profile = "smoke",
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    seed: options.Seed = None,
    no_tracking: options.NoTracking = False,
    tuned: options.Tuned = False,
) -> None:
    """Print the metrics of the last evaluation; with --tables make and print the paper's tables, ours beside them."""
    from resources.storage import ArtifactStore

    store = ArtifactStore(root=str(result))
    if not tables:
        if pair is None:
            raise SettingsError("report needs --pair, or --tables for the paper's tables")
        print_report(store, pair)
        return
    overrides = options.overrides(source, path, seed, assignments)
    failed = []
    for each in PAIRS if pair is None else (pair,):
        _console.rule(each)
        chosen = tuned_overrides(each, profile, overrides, result) if tuned else overrides
        try:
            materialise(each, profile, chosen, TABLES, result, tracking=not no_tracking)
        except typer.Exit as end:
            if end.exit_code != 1:
                raise
            failed.append(each)
    if failed:
        raise SettingsError(f"the tables of {', '.join(failed)} were not made, for the reasons above")
    page = store.open("paper_tables", None)
    _console.print(f"Tables: {page.path('tables.html')}", soft_wrap=True)


app.command("ingest", cls=IngestCommand)(ingest)
app.command("train-policy")(train_policy)
app.command("audit")(audit)
app.command("crosscheck")(crosscheck)
app.command("sweep")(sweep)
app.command("acceptance")(acceptance)
app.command("paper")(paper)
app.command("ui")(ui)
app.command("backfill")(backfill)


@app.command()
def bench(name: Annotated[str | None, typer.Argument(help="One benchmark; all of them when left out.")] = None) -> None:
    """Run the benchmarks of a source checkout."""
    folder = Path("benchmarks")
    files = sorted(folder.glob("[!_]*.py"))
    chosen = [file for file in files if name in (None, file.stem)]
    if not chosen:
        there = ", ".join(file.stem for file in files) or "none"
        raise SettingsError(f"no such benchmark in {folder.resolve()}, which holds {there}")
    for file in chosen:
        _console.rule(file.stem)
        done = subprocess.run([sys.executable, str(file)], check=False)
        if done.returncode:
            raise typer.Exit(done.returncode)


def main() -> None:
    """Entry point: errors a user can mend end in one line and exit code 1; SIGTERM ends a command as Ctrl-C does."""
    # A shell in the background leaves Ctrl-C's signal ignored, and service managers send the other one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except ArchetypeError as error:
        print_error(str(error))
        sys.exit(1)
