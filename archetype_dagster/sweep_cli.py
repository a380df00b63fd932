"""`archetype sweep`, and the settings that a sweep found for `archetype run --tuned`.

What is heavy is imported inside the functions, so that `--help` is immediate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from archetype_dagster import cli_options as options
from archetype_dagster.cli_runs import materialise

_console = Console()
_LISTED = 10


def sweep(
    pair: options.Pair,
    spec: Annotated[
        str, typer.Option("--spec", help="codebook, selection, refinement, or a YAML file.")
    ] = "refinement",
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials, earlier ones included.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes.")] = None,
    profile: options.Profile = "smoke",
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    seed: options.Seed = None,
    no_tracking: options.NoTracking = False,
) -> None:
    """Try other settings of the three phases on the validation split, and keep the best.

    The same command goes on where it was stopped, and with more --trials where it ended.
    """
    from archetype_dagster.settings import named_mapping

    overrides: dict[str, Any] = {"sweep": named_mapping(spec, "sweeps", kind="sweep")}
    given = {"sweep.trials": trials, "sweep.jobs": jobs}
    overrides |= {name: value for name, value in given.items() if value is not None}
    overrides |= options.overrides(source, path, seed, assignments)
    materialise(pair, profile, overrides, "+best_settings", result, tracking=not no_tracking)
    _print_sweep(pair, result)


def tuned_overrides(pair: str, profile: str, overrides: dict[str, Any], result: Path) -> dict[str, Any]:
    """The overrides with those on top that the pair's last sweep found.

    Args:
        pair: traded pair.
        profile: shipped profile, or a YAML file.
        overrides: settings by dotted name on top of it, as they were for the sweep.
        result: folder of the artifacts.

    Raises:
        SettingsError: unknown settings or pair.
        ArtifactError: the pair has no sweep, or one of other settings or another market than these.
    """
    from archetype_dagster.errors import ArtifactError
    from archetype_dagster.pipeline.manifests import source_hashes
    from archetype_dagster.pipeline.stages import BEST_SETTINGS, MARKET_BARS
    from archetype_dagster.settings import load_settings
    from archetype_dagster.sweeps.pipeline_results import BestSettings
    from assets.lineage import verify_current
    from resources.storage import ArtifactStore

    store = ArtifactStore(root=str(result))
    found = BestSettings.load(store.open(BEST_SETTINGS, pair).directory)
    settings = load_settings(profile, overrides).changed({"sweep": found.sweep})
    verify_current(BEST_SETTINGS, pair, store=store, settings=settings)
    bars = store.open(MARKET_BARS, pair).manifest
    if not settings.market.by_month and bars.parents != source_hashes(settings, pair):
        raise ArtifactError(
            f"the files that the bars of {pair} come from have changed since the sweep; sweep again (archetype sweep)"
        )
    return {**overrides, **found.overrides}


def _print_sweep(pair: str, result: Path) -> None:
    from archetype_dagster.pipeline.stages import SWEEP_STUDY
    from archetype_dagster.sweeps.pipeline_results import UNTUNED, PipelineSweep
    from resources.storage import ArtifactStore

    found = PipelineSweep.load(ArtifactStore(root=str(result)).open(SWEEP_STUDY, pair).directory)
    metric = found.sweep["metric"].replace("_", " ")
    judged = {name: facts for name, facts in found.runs.items() if facts["value"] is not None}
    ranked = sorted(judged, key=lambda name: float(judged[name]["value"]), reverse=True)
    shown = ranked[:_LISTED] + ([UNTUNED] if UNTUNED in ranked[_LISTED:] else [])
    table = Table("run", title=f"{pair}, sweep {found.sweep['name']}, validation split", title_justify="left")
    table.add_column(metric, justify="right")
    table.add_column("changes")
    for name in shown:
        changes = ", ".join(f"{field} = {_short(value)}" for field, value in judged[name]["changes"].items())
        table.add_row(name, f"{judged[name]['value']:.3f}", changes or "none")
    _console.print(table)
    pruned = sum(facts["state"] == "pruned" for facts in found.runs.values())
    _console.print(f"{len(found.runs)} tried, {pruned} of them given up early; {found.failed} failed")
    if found.best == UNTUNED:
        _console.print("No trial did better than the settings as they are.")
    else:
        _console.print("archetype run --tuned, with the same options, trains and judges the best of them.")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
