"""Running stages for the commands, with live bars, one line for each error and a closing table.

What is heavy is imported inside the functions, so that `--help` is immediate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from archetype_dagster.types import NoProgress, Progress

if TYPE_CHECKING:
    from resources.storage import ArtifactStore

_console = Console()
_errors = Console(stderr=True)


def print_error(message: str) -> None:
    """One line on standard error."""
    _errors.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


@contextmanager
def terminal_progress(title: str) -> Iterator[Progress]:
    """A live bar on standard error where there is a terminal, or nothing."""
    if not _errors.is_interactive:
        yield NoProgress()
        return
    from rich.progress import Progress as Bars

    from resources.progress import BarProgress, bar_columns

    with Bars(*bar_columns(), console=_errors, transient=True) as bars:
        yield BarProgress(bars, title)


def materialise(
    pair: str, profile: str, overrides: dict[str, Any], selection: str, result: Path, *, tracking: bool
) -> None:
    """Materialise a selection of stages for one pair.

    Args:
        pair: traded pair.
        profile: shipped profile, or a YAML file.
        overrides: settings by dotted name on top of it.
        selection: stages, see `select_stages`.
        result: folder of the artifacts.
        tracking: whether MLflow records the run.

    Raises:
        SettingsError: settings, pair or selection that there are not.
        typer.Exit: the run failed or was interrupted; what went wrong has been printed.
    """
    from archetype_dagster.settings import load_settings

    # Checked before the slow imports, so that a mistyped name is answered at once.
    settings = load_settings(profile, overrides)
    settings.pair(pair)

    from archetype_dagster.definitions import build_defs
    from archetype_dagster.jobs import months_to_run, run_pipeline
    from resources.instance import instance_home, open_instance, run_owner
    from resources.progress import ConsoleProgressResource
    from resources.storage import ArtifactStore
    from resources.tracking import TrackingResource

    definitions = build_defs({"progress": ConsoleProgressResource(), "tracking": TrackingResource(enabled=tracking)})
    chosen = {"settings_file": profile} if profile.endswith((".yaml", ".yml")) else {"profile": profile}
    run_config = {
        "resources": {
            "settings": {"config": {**chosen, "overrides": overrides}},
            "store": {"config": {"root": str(result)}},
        }
    }
    home = instance_home()
    with open_instance(home) as instance, run_owner(home) as tags:
        try:
            outcome = run_pipeline(
                definitions,
                pair=pair,
                selection=selection,
                instance=instance,
                run_config=run_config,
                tags=tags,
                months=months_to_run(definitions, settings, pair, selection),
            )
        except KeyboardInterrupt:
            _errors.print("interrupted; the same command goes on from what was saved")
            raise typer.Exit(130) from None
    for line in outcome.warnings:
        _errors.print(f"[yellow]warning:[/] {escape(line)}", soft_wrap=True, highlight=False)
    for line in (*outcome.failures, *(f"check failed: {line}" for line in outcome.failed_checks)):
        print_error(line)
    if not outcome.success:
        raise typer.Exit(1)
    made = len(outcome.materialised)
    _console.print(
        f"{made} assets materialised, {len(outcome.reused)} of them reused; {outcome.passed_checks} checks passed"
    )
    if "evaluation_report" in outcome.materialised:
        print_report(ArtifactStore(root=str(result)), pair)


def print_report(store: ArtifactStore, pair: str) -> None:
    """The last evaluation's metrics; `ArtifactError` where there is none."""
    from archetype_dagster.reporting import read_metrics
    from archetype_dagster.reporting.terminal import metrics_table

    artifact = store.open("evaluation_report", pair)
    summary = read_metrics(artifact.directory)
    _console.print(metrics_table(summary))
    _console.print(f"Initial capital: {summary['initial_capital']:,.2f} {summary['quote']}")
    _console.print(f"Report: {artifact.path('report.html')}", soft_wrap=True)
