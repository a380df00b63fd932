"""`archetype ui` and `archetype backfill`: the graph operated by Dagster's web server and daemon."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from archetype_dagster import cli_options as options

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
    environment = _environment(home, profile, changes, result)
    if no_tracking:
        from resources.tracking import OFF, TRACKING_VARIABLE

        environment[TRACKING_VARIABLE] = OFF
    services = Services(home, port, environment, _say)
    # Either signal ends the watch, and the context stops the processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with services.running():
            _say(f"Dagster UI: http://127.0.0.1:{port} (Ctrl-C stops it)")
            services.watch()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _environment(home: Path, profile: str | None, changes: Mapping[str, Any], result: Path | None) -> dict[str, str]:
    """What the processes' code location takes as its defaults."""
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
