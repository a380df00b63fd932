"""`archetype fetch`: files of the public archives, with a live bar and a closing table.

What is heavy is imported inside the commands, so that `--help` is immediate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archetype_dagster import cli_options as options
from archetype_dagster.cli_runs import terminal_progress
from archetype_dagster.errors import FetchError, SettingsError

if TYPE_CHECKING:
    from archetype_dagster.market.fetching import ArchiveKey, BinanceSeries, FetchReport, TardisSeries
    from archetype_dagster.settings import Settings

_MOST_LINES: Final = 20

_console = Console()
_errors = Console(stderr=True)

app = typer.Typer(help="Download market data from a public archive.", no_args_is_help=True)

Pair = Annotated[str | None, typer.Option("--pair", help="Pair of the settings: BTC, ETH, DOT or BNB.")]
Symbol = Annotated[str | None, typer.Option("--symbol", help="The archive's own symbol, in place of --pair.")]
Start = Annotated[str, typer.Option("--start", help="First day or month, UTC: YYYY-MM-DD or YYYY-MM.")]
End = Annotated[str, typer.Option("--end", help="First day or month that is not fetched any more.")]
Output = Annotated[Path, typer.Option("--output", help="Folder of the copy; what it holds already is not fetched.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="Root of a mirror.")]


@app.command()
def binance(
    start: Start,
    end: End,
    output: Output,
    pair: Pair = None,
    symbol: Symbol = None,
    data: Annotated[str, typer.Option("--data", help="klines, aggTrades, trades or bookDepth.")] = "klines",
    interval: Annotated[str, typer.Option("--interval", help="Length of the klines: 1s, 1m, 5m ... 12h.")] = "1m",
    market: Annotated[str, typer.Option("--market", help="spot, or um for USD-margined futures.")] = "spot",
    period: Annotated[str, typer.Option("--period", help="monthly or daily files.")] = "monthly",
    base_url: BaseUrl = None,
    profile: options.Profile = "smoke",
    assignments: options.Assignments = None,
) -> None:
    """Binance's public archive: zips, each verified against the SHA-256 the archive publishes for it."""
    from archetype_dagster.market.fetching import ArchiveKey, BinanceSeries

    settings = _settings(profile, "binance", base_url, assignments)
    series = BinanceSeries(_symbol(settings, pair, symbol), data, market, period, interval)
    _fetch(series, settings.fetch.binance_url, start, end, output, settings, ArchiveKey())


@app.command()
def tardis(
    start: Start,
    end: End,
    output: Output,
    pair: Pair = None,
    symbol: Symbol = None,
    data: Annotated[
        str, typer.Option("--data", help="book_snapshot_5, book_snapshot_25, incremental_book_L2 or trades.")
    ] = "book_snapshot_25",
    exchange: Annotated[str, typer.Option("--exchange", help="E.g. binance or binance-futures.")] = "binance",
    base_url: BaseUrl = None,
    profile: options.Profile = "smoke",
    assignments: options.Assignments = None,
) -> None:
    """Tardis' archive of daily gzipped CSV; the API key is read from TARDIS_API_KEY, the 1st of a month needs none."""
    from archetype_dagster.market.fetching import TARDIS_KEY_VARIABLE, ArchiveKey, TardisSeries

    settings = _settings(profile, "tardis", base_url, assignments)
    series = TardisSeries(exchange, data, _symbol(settings, pair, symbol))
    _fetch(series, settings.fetch.tardis_url, start, end, output, settings, ArchiveKey(TARDIS_KEY_VARIABLE))


def _settings(profile: str, archive: str, base_url: str | None, assignments: list[str] | None) -> Settings:
    from archetype_dagster.settings import load_settings

    url = {} if base_url is None else {f"fetch.{archive}_url": base_url}
    return load_settings(profile, {**url, **options.overrides(None, None, None, assignments)})


def _symbol(settings: Settings, pair: str | None, symbol: str | None) -> str:
    if pair is not None and symbol is None:
        chosen = settings.pair(pair)
        return f"{chosen.base}{chosen.quote}"
    if symbol is None or pair is not None:
        raise SettingsError("name either --pair or --symbol")
    return symbol


def _fetch(
    series: BinanceSeries | TardisSeries,
    base_url: str,
    start: str,
    end: str,
    output: Path,
    settings: Settings,
    key: ArchiveKey,
) -> None:
    from archetype_dagster.market.fetching import FetchStatus, fetch_files
    from archetype_dagster.market.fetching.layouts import parse_day

    files = series.files(base_url, parse_day("--start", start), parse_day("--end", end))
    try:
        with terminal_progress(series.folder.as_posix()) as progress:
            report = fetch_files(files, output, settings.fetch, key=key, progress=progress)
    except KeyboardInterrupt:
        _errors.print("interrupted; the same command goes on from what was saved")
        raise typer.Exit(130) from None
    _print_report(report)
    counts = report.counts
    faulty = counts[FetchStatus.REFUSED] + counts[FetchStatus.FAILED]
    if faulty:
        raise FetchError(f"{faulty} of {len(files)} files could not be fetched")
    if counts[FetchStatus.MISSING] == len(files):
        raise FetchError(f"the archive has none of the {len(files)} files; look at the symbol and the dates")
    _console.print(f"Files: {(output / series.folder).resolve()}", soft_wrap=True)


def _print_report(report: FetchReport) -> None:
    from archetype_dagster.market.fetching import FetchStatus

    table = Table(title=f"{len(report.outcomes)} files, {report.size / 1e6:,.1f} MB", title_justify="left")
    for status in FetchStatus:
        table.add_column(status.value, justify="right")
    table.add_row(*(str(count) for count in report.counts.values()))
    _console.print(table)
    absent = [o for o in report.outcomes if o.status not in (FetchStatus.FETCHED, FetchStatus.PRESENT)]
    for outcome in absent[:_MOST_LINES]:
        line = f"{outcome.status}: {outcome.file.path.name}: {outcome.reason}"
        _errors.print(f"[yellow]warning:[/] {escape(line)}", soft_wrap=True, highlight=False)
    if len(absent) > _MOST_LINES:
        _errors.print(f"[yellow]warning:[/] and {len(absent) - _MOST_LINES} more", highlight=False)
