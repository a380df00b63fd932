"""`archetype acceptance`: the acceptance metrics as JSON, and what is being measured on the way.

What is heavy is imported inside the command, so that `--help` is immediate.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_DATA_VARIABLE = "ARCHETYPE_SHARED_DATA"


def acceptance(
    quick: Annotated[bool, typer.Option("--quick", help="Only see that it works; the figures mean nothing.")] = False,
    spec: Annotated[Path | None, typer.Option("--spec", help="YAML file of other budgets and targets.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help=f"Folder of real data; ${_DATA_VARIABLE} or ../shared/data if left out."),
    ] = None,
    result: Annotated[Path, typer.Option("--result", help="Folder of what is trained.")] = Path("result/.acceptance"),
    output: Annotated[Path | None, typer.Option("--output", help="File for the JSON too.")] = None,
) -> None:
    """Measure convergence, gain and time of a sweep, and the error of the exported policy; exit code 1 on a miss.

    The same command goes on with what it had trained; a sweep that was interrupted is timed anew.
    """
    from archetype_dagster.settings import AcceptanceSettings, named_mapping

    name = str(spec) if spec is not None else "quick" if quick else "full"
    chosen = named_mapping(name, "acceptance", kind="acceptance")
    settings = AcceptanceSettings.checked(chosen, {}, f"acceptance {name}")

    from archetype_dagster.acceptance import measure_acceptance
    from archetype_dagster.acceptance.policies import AcceptanceRun
    from archetype_dagster.artifacts import write_json
    from archetype_dagster.compute import compute_session
    from resources.progress import LogProgress

    log = _log_on_stderr()
    with compute_session("cpu", threads=None, deterministic=True, precision="float32") as device:
        report = measure_acceptance(
            AcceptanceRun(
                settings=settings,
                root=result,
                data=data or _usual_data(),
                device=device,
                progress=LogProgress(log, settings.pair, min_seconds=20.0),
                note=log.info,
            )
        )
    told = {"form": name, **report.as_dict()}
    if output is not None:
        write_json(output, told)
    Console().print_json(data=told)
    if not report.passed:
        raise typer.Exit(1)


def _usual_data() -> Path | None:
    folder = Path(os.environ.get(_DATA_VARIABLE) or "../shared/data")
    return folder if folder.is_dir() else None


def _log_on_stderr() -> logging.Logger:
    log = logging.getLogger("archetype.acceptance")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    return log
