"""`archetype train-policy`: a policy from its specification, judged beside the built-in ones and exported.

What is heavy is imported inside the functions, so that `--help` is immediate.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from archetype_dagster import cli_options as options
from archetype_dagster.cli_runs import terminal_progress

if TYPE_CHECKING:
    from archetype_dagster.artifacts import Artifact

_console = Console()
_errors = Console(stderr=True)


def train_policy(
    spec: Annotated[str, typer.Argument(help="A shipped specification, e.g. patchtst_execution, or a YAML file.")],
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Environment steps of the training.")] = None,
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    no_tracking: options.NoTracking = False,
) -> None:
    """Train the policy of a specification, judge it on its held-out window, and export it.

    SPEC is a shipped name (transformer_stock_trading, recurrent_portfolio, autoencoder_marketmaking,
    patchtst_execution) or the path of a YAML file; --set changes single values, e.g. algorithm.learning_rate=0.001.
    The same command goes on where it was stopped, and reuses what nothing changed.
    """
    from archetype_dagster.settings.policy_specs import load_policy_spec

    overrides = {} if steps is None else {"total_steps": steps}
    # Checked before the slow imports, so that a mistyped name is answered at once.
    chosen = load_policy_spec(spec, {**overrides, **options.overrides(None, None, None, assignments)})

    from assets.policy_runs import PolicyRun, make_policy, policy_manifest
    from resources.compute import ComputeResource
    from resources.tracking import TrackingResource

    name, root = Path(spec).stem, result.expanduser().resolve()
    key = policy_manifest(chosen, name).key
    run = PolicyRun(
        name,
        root,
        ComputeResource(),
        TrackingResource(enabled=not no_tracking),
        f"train-policy/{name}/{key}",
        logging.getLogger(__name__),
    )
    try:
        with terminal_progress(name) as progress:
            artifact, reused = make_policy(chosen, run, progress)
    except KeyboardInterrupt:
        _errors.print("interrupted; the same command goes on from what was saved")
        raise typer.Exit(130) from None
    _print_policies(name, artifact)
    _console.print(f"Run: {key[:12]}, {'reused, nothing changed' if reused else 'trained'}")
    _console.print(f"Policy: {artifact.directory}", soft_wrap=True)
    _console.print(f"TensorBoard: {run.tensorboard(key)}", soft_wrap=True)


def _print_policies(name: str, artifact: Artifact) -> None:
    from archetype_dagster.artifacts import read_json
    from archetype_dagster.policy_training.trained import EVALUATION_FILE
    from assets.policy_runs import lead_rows, reward_rows

    summary = read_json(artifact.path(EVALUATION_FILE))
    rows = reward_rows(summary)
    policies = [str(row["policy"]) for row in rows]
    facts: list[dict[str, object]] = [
        {"mean": fact.replace("_", " "), **{name: row[fact] for name, row in zip(policies, rows, strict=True)}}
        for fact in rows[0]
        if fact != "policy"
    ]
    _print_rows(f"{name}: episodes of the held-out window", facts)
    _print_rows("reward of the trained policy over the others'", lead_rows(summary))


def _print_rows(title: str, rows: list[dict[str, object]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    _console.print(table)
