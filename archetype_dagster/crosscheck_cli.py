"""`archetype audit` and `archetype crosscheck`: the last evaluation held against its market and other engines.

What is heavy is imported inside the commands, so that `--help` is immediate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from archetype_dagster import cli_options as options
from archetype_dagster.sweep_cli import tuned_overrides

if TYPE_CHECKING:
    import polars as pl

    from archetype_dagster.backtest import Ledger
    from archetype_dagster.backtest.audit import AuditReport
    from archetype_dagster.backtest.crosscheck import CrossCheck
    from archetype_dagster.settings import Settings
    from archetype_dagster.types import IndexArray

_console = Console()


def audit(
    pair: options.Pair,
    profile: options.Profile = "smoke",
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    seed: options.Seed = None,
    tuned: options.Tuned = False,
    steps: Annotated[Path | None, typer.Option("--steps", help="Folder for the ledger as CSV, bar by bar.")] = None,
    rows_per_file: Annotated[
        int, typer.Option("--rows-per-file", min=1, help="Bars in each file of --steps.")
    ] = 10_000,
    trips: Annotated[Path | None, typer.Option("--trips", help="CSV file for the round trips.")] = None,
) -> None:
    """Audit the trades of the last evaluation; exit code 1 where a rule is broken.

    Give the settings that the evaluation was made with.
    """
    from archetype_dagster.artifacts import write_bytes_atomically
    from archetype_dagster.backtest.audit import audit as audit_ledger
    from archetype_dagster.backtest.audit import write_steps

    run = _run(pair, profile, options.overrides(source, path, seed, assignments), result, tuned=tuned)
    report = audit_ledger(
        run.ledger,
        run.bars,
        pair=run.settings.pair(pair),
        settings=run.settings.execution,
        periods_per_year=run.settings.market.bars_per_year,
    )
    for table in _audit_tables(pair, report):
        _console.print(table)
    if steps is not None:
        written = write_steps(run.ledger, steps, rows_per_file)
        _console.print(f"Steps: {len(written)} files in {steps.resolve()}", soft_wrap=True)
    if trips is not None:
        write_bytes_atomically(trips, report.trips.write_csv().encode())
        _console.print(f"Trips: {trips.resolve()}", soft_wrap=True)
    if not report.passed:
        raise typer.Exit(1)


def crosscheck(
    pair: options.Pair,
    engine: Annotated[str, typer.Option("--engine", help="backtrader or vectorbt.")] = "backtrader",
    profile: options.Profile = "smoke",
    source: options.Source = None,
    path: options.DataPath = None,
    assignments: options.Assignments = None,
    result: options.Result = Path("result"),
    seed: options.Seed = None,
    tuned: options.Tuned = False,
) -> None:
    """Replay the last evaluation's decisions through another engine; exit code 1 where the accounts differ.

    Give the settings that the evaluation was made with.
    """
    from archetype_dagster.backtest.crosscheck import cross_check

    run = _run(pair, profile, options.overrides(source, path, seed, assignments), result, tuned=tuned)
    found = cross_check(
        run.ledger,
        run.bars,
        pair=run.settings.pair(pair),
        settings=run.settings.execution,
        engine=engine,
        horizon_starts=run.horizon_starts,
    )
    if not found.passed:
        _console.print(_difference_table(pair, found))
    _console.print(f"{pair}: {found.summary}", soft_wrap=True)
    if not found.passed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Run:
    """The full policy's ledger as it was written, the bars it traded, and where its horizons start among them."""

    settings: Settings
    bars: pl.DataFrame
    ledger: Ledger
    horizon_starts: IndexArray


def _run(pair: str, profile: str, overrides: dict[str, object], result: Path, *, tuned: bool) -> _Run:
    from archetype_dagster.settings import load_settings

    if tuned:
        overrides = tuned_overrides(pair, profile, overrides, result)
    # Checked before the slow imports, so that a mistyped name is answered at once.
    settings = load_settings(profile, overrides)
    settings.pair(pair)

    from archetype_dagster.backtest.accounts import SplitAccounts
    from archetype_dagster.pipeline.inputs import bars_of, splits_of
    from archetype_dagster.reporting import read_ledger
    from assets.lineage import verify_current
    from resources.storage import ArtifactStore

    store = ArtifactStore(root=str(result))
    verify_current("evaluation_report", pair, store=store, settings=settings)
    report = store.open("evaluation_report", pair)
    bars = bars_of(store.open("market_bars", pair))
    test = splits_of(store.open("feature_table", pair), settings).test
    accounts = SplitAccounts(bars, test, settings, (settings.splits.test_start, settings.splits.test_end))
    ledger = read_ledger(report.directory, commission_rate=settings.execution.commission_rate)
    return _Run(settings, bars, ledger, accounts.horizon_starts)


def _audit_tables(pair: str, report: AuditReport) -> list[Table]:
    rules = Table("rule", "first broken at", title=f"{pair}, {report.bars} bars", title_justify="left")
    rules.add_column("bars", justify="right")
    for check in report.checks:
        where = "holds" if check.passed else f"{check.timestamp} (row {check.row})"
        rules.add_row(check.rule, where, "" if check.passed else str(check.broken), style="" if check.passed else "red")
    trades = Table(title=f"{pair} trades", title_justify="left", show_header=False)
    trades.add_column("statistic")
    trades.add_column("value", justify="right")
    for name, value in {"total_return": report.total_return, **report.statistics.as_dict()}.items():
        trades.add_row(name.replace("_", " "), _number(value))
    return [rules, trades]


def _difference_table(pair: str, found: CrossCheck) -> Table:
    shown = found.differing.drop("timestamp")
    table = Table(
        "bar", *(name.replace("_", " ") for name in shown.columns), title=f"{pair}: ours and {found.engine}'s"
    )
    for time, row in zip(found.differing["timestamp"], shown.iter_rows(), strict=True):
        table.add_row(f"{time:%Y-%m-%d %H:%M}", *(_number(value) for value in row))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if abs(value) < 1 else f"{value:,.2f}"
