"""`archetype ui` and `archetype backfill`: the graph operated by Dagster's web server and daemon."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from archetype_dagster import cli_options as options
from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import PAIRS

if TYPE_CHECKING:
    from collections.abc import Mapping

_console = Console()


def ui(
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1.")] = 3000,
    profile: Annotated[
        str | None, typer.Option("--profile", help="What runs use unless they say otherwise: a profile or YAML file.")
    ] = None,
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    result: Annotated[Path | None, typer.Option("--result", help="Folder of the artifacts.")] = None,
    seed: options.Seed = None,
    no_tracking: options.NoTracking = False,
) -> None:
    """Start the Dagster UI, its daemon and a code server on this machine; what dies is started again."""
    from resources.instance import instance_home, open_instance
    from resources.services import Services

    home = instance_home()
    with open_instance(home):
        pass
    changes = options.overrides(source, path, seed, assignments)
    environment = code_location_environment(home, profile, changes, result)
    if no_tracking:
        from resources.tracking import OFF, TRACKING_VARIABLE

        environment[TRACKING_VARIABLE] = OFF
    services = Services(home, port, environment, _say)
    try:
        with services.running():
            _say(f"Dagster UI: http://127.0.0.1:{port} (Ctrl-C stops it)")
            services.watch()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def backfill(
    pairs: Annotated[str, typer.Option("--pairs", help="Pairs, separated by commas.")] = ",".join(PAIRS),
    job: Annotated[
        str | None, typer.Option("--job", help="train_pair (the default), refresh_pair or pipeline.")
    ] = None,
    months: Annotated[
        str | None, typer.Option("--months", help="Months of raw bars to build instead: 2024-01, or 2024-01..2024-06.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Profile or YAML file, if not the UI's.")] = None,
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    max_hours: Annotated[float | None, typer.Option("--max-hours", help="Longest a run may take.")] = None,
    retries: Annotated[int | None, typer.Option("--retries", help="How often a killed run is tried again.")] = None,
) -> None:
    """Run a job for several pairs, or months of them, through the daemon of a running `archetype ui`."""
    from archetype_dagster.jobs import MAX_RUNTIME_TAG, MONTHS, PIPELINE, REFRESH, TRAINING, month_key
    from resources.instance import instance_home
    from resources.ui_client import launch_backfill, running_ui

    chosen = [pair.strip() for pair in pairs.split(",") if pair.strip()]
    if not chosen or set(chosen) - set(PAIRS):
        raise SettingsError(f"--pairs must name some of {', '.join(PAIRS)}, got {pairs!r}")
    if months is not None and job is not None:
        raise SettingsError("--months has a job of its own; leave --job out")
    wanted = job or (TRAINING if months is None else MONTHS)
    if wanted not in (TRAINING, REFRESH, PIPELINE, MONTHS):
        raise SettingsError(f"--job must be {TRAINING}, {REFRESH} or {PIPELINE}, got {wanted!r}")
    partitions = (
        chosen if months is None else [str(month_key(pair, month)) for pair in chosen for month in month_range(months)]
    )
    changes = options.overrides(source, path, seed, assignments)
    config: dict[str, Any] = {"overrides": changes} if changes else {}
    if profile is not None:
        is_file = Path(profile).suffix in {".yaml", ".yml"}
        config["settings_file" if is_file else "profile"] = str(Path(profile).resolve()) if is_file else profile
    tags = {"archetype/reason": "backfill"}
    if max_hours is not None:
        tags[MAX_RUNTIME_TAG] = str(round(max_hours * 3600))
    if retries is not None:
        tags["dagster/max_retries"] = str(retries)
    address = running_ui(instance_home())
    run_config = {"resources": {"settings": {"config": config}}} if config else {}
    name = launch_backfill(address, wanted, partitions, run_config=run_config, tags=tags)
    _say(f"{len(partitions)} runs of {wanted} asked for: {address}/runs/b/{name}")


def month_range(text: str) -> list[str]:
    """Months of `2024-01`, or from one to another, both included: `2024-01..2024-06`.

    Raises:
        SettingsError: not a month, or the last before the first.
    """
    first, separator, last = text.partition("..")
    try:
        begin, end = (datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC) for month in (first, last or first))
    except ValueError:
        raise SettingsError(f"--months must be YYYY-MM or YYYY-MM..YYYY-MM, got {text!r}") from None
    if end < begin or (separator and not last):
        raise SettingsError(f"--months must not end before they begin, got {text!r}")
    count = (end.year - begin.year) * 12 + end.month - begin.month + 1
    return [f"{begin.year + (begin.month - 1 + k) // 12}-{(begin.month - 1 + k) % 12 + 1:02}" for k in range(count)]


def code_location_environment(
    home: Path, profile: str | None, changes: Mapping[str, Any], result: Path | None
) -> dict[str, str]:
    """Variables that make settings and a result folder the defaults of the processes' code location.

    Raises:
        SettingsError: an unknown profile, or a setting that is unknown or out of range.
    """
    from archetype_dagster.artifacts import write_bytes_atomically
    from archetype_dagster.settings import load_settings
    from resources.settings import SETTINGS_VARIABLE
    from resources.storage import RESULT_VARIABLE

    chosen = profile or os.environ.get(SETTINGS_VARIABLE) or "smoke"
    settings = load_settings(chosen, changes)
    if changes:
        file = home / "settings.yaml"
        write_bytes_atomically(file, yaml.safe_dump(settings.model_dump(mode="json")).encode())
        chosen = str(file)
    elif Path(chosen).suffix in {".yaml", ".yml"}:
        chosen = str(Path(chosen).resolve())
    folder = result or Path(os.environ.get(RESULT_VARIABLE) or "result")
    return {SETTINGS_VARIABLE: chosen, RESULT_VARIABLE: str(folder.resolve())}


def _say(message: str) -> None:
    _console.print(message, highlight=False, soft_wrap=True)
