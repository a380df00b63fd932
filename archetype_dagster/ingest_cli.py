"""`archetype ingest`: raw market data of any source into validated bars, with a report of what was found."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from typer.core import TyperCommand

from archetype_dagster import cli_options as options

if TYPE_CHECKING:
    import click

_console = Console()


class IngestCommand(TyperCommand):
    """The command with every source and every policy listed below its options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page; what it lists is imported only here, because the command line must start at once."""
        from archetype_dagster.market.vendors import SOURCES
        from archetype_dagster.settings import IngestionSettings

        sources = {
            "bars": "a Parquet file in the bars schema, or a folder with one per pair",
            **{name: source.summary for name, source in SOURCES.items()},
        }
        policies = {
            f"market.ingestion.{name}": f"{_choices(field.annotation, field.default)}: {field.description}"
            for name, field in IngestionSettings.model_fields.items()
        }
        lines = ["Sources:", *_listed(sources), "Policies, set with --set NAME=VALUE:", *_listed(policies)]
        self.epilog = "\n\n".join(lines)
        super().format_help(ctx, formatter)


def ingest(
    path: Annotated[Path, typer.Argument(help="File, folder or glob of the source.")],
    pair: options.Pair,
    output: Annotated[Path, typer.Option("--output", help="Parquet file to write the bars to.")],
    source: Annotated[str, typer.Option("--source", help="Format of the source, one of those below.")] = "candles",
    prices_source: Annotated[
        str | None, typer.Option("--prices-source", help="Format of the trades or candles for a source of books only.")
    ] = None,
    prices_path: Annotated[
        Path | None, typer.Option("--prices-path", help="File, folder or glob of those trades or candles.")
    ] = None,
    bar_minutes: Annotated[int | None, typer.Option("--bar-minutes", help="Length of a bar.")] = None,
    profile: options.Profile = "smoke",
    assignments: options.Assignments = None,
    seed: options.Seed = None,
) -> None:
    """Turn raw market data into validated bars, and say what was found.

    A source without order books is given a modelled one. Faults are met by named policies and counted.
    """
    from archetype_dagster.artifacts import write_bytes_atomically
    from archetype_dagster.market.sources import bars_with_report
    from archetype_dagster.reporting.terminal import quality_tables
    from archetype_dagster.settings import load_settings

    given = {
        "market.prices_source": prices_source,
        "market.prices_path": None if prices_path is None else str(prices_path),
        "market.bar_minutes": bar_minutes,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(profile, {**chosen, **options.overrides(source, path, seed, assignments)})
    bars, found = bars_with_report(settings, pair)
    buffer = io.BytesIO()
    bars.write_parquet(buffer)
    write_bytes_atomically(output, buffer.getvalue())
    for table in quality_tables(pair, found):
        _console.print(table)
    _console.print(f"Bars: {output.resolve()}", soft_wrap=True)


def _listed(entries: dict[str, str]) -> list[str]:
    return [f"- {name}: {text}" for name, text in entries.items()]


def _choices(annotation: Any, default: Any) -> str:
    values = [str(value) for value in get_args(annotation) if isinstance(value, str)]
    return f"{' or '.join(values)}, default {default}" if values else f"default {default}"
