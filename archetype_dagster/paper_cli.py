"""`archetype paper`: a bundle follows new bars, trades them on paper and keeps a journal.

What is heavy is imported inside the command, so that `--help` is immediate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from archetype_dagster import cli_options as options
from archetype_dagster.errors import SettingsError

if TYPE_CHECKING:
    from archetype_dagster.paper_trading import MarketFeed
    from archetype_dagster.settings import Settings
    from archetype_dagster.types import JsonDict

STOPPED: Final = 3
"""Exit code where a limit, or a fault whose policy is `stop`, ended trading."""

_INTERRUPTED: Final = 130
_console = Console()
_errors = Console(stderr=True)


def paper(
    bundle: Annotated[Path, typer.Option("--bundle", help="Folder of an exported policy.")],
    feed: Annotated[Path, typer.Option("--feed", help="File or folder of bars, or what --source reads.")],
    source: Annotated[
        str, typer.Option("--source", help="bars, binance-capture, or a format that ingest --help lists.")
    ] = "bars",
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new rows and files of bars.")] = False,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Folder of journal and state; paper/PAIR if left out.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", help="First bar end to trade on; earlier bars warm the features up.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Trade again after a limit stopped trading.")] = False,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", help="onnxruntime's execution provider. May be repeated.")
    ] = None,
    profile: options.Profile = "smoke",
    assignments: options.Assignments = None,
) -> None:
    """Trade bars on paper as they come; a process that was killed goes on where its journal ends.

    Limits and fault policies are paper_trading.* settings. Exit code 3 says that a limit stopped trading.
    """
    from archetype_dagster.deployment import OnnxPolicy
    from archetype_dagster.paper_trading import FileFeed, Journal, PaperSession
    from archetype_dagster.paper_trading.display import LineDisplay, LiveDisplay, account_table
    from archetype_dagster.settings import load_settings

    try:
        policy = OnnxPolicy.load(bundle, providers=tuple(provider or ("CPUExecutionProvider",)))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    manifest = policy.manifest
    changes = {
        **({} if source == "bars" else {"market.source": source, "market.path": str(feed)}),
        **({} if start is None else {"paper_trading.start": start}),
        **options.overrides(None, None, None, assignments),
        "market.bar_minutes": manifest["bar_minutes"],
    }
    settings = load_settings(profile, changes)
    pair, quote = manifest["pair"], manifest["quote"]
    with Journal(journal or Path("paper") / pair) as book:
        source_feed = _feed(feed, source, follow, settings, manifest)
        session = PaperSession.start(
            policy,
            source_feed,
            book,
            settings.paper_trading,
            bundle=policy.bundle.hash,
            go_on=go_on,
        )
        if book.state is not None:
            _console.print(f"{pair}: going on after record {book.state['seq']} of {book.path}", soft_wrap=True)
        display = (
            LiveDisplay(_console, pair=pair, quote=quote)
            if _console.is_interactive
            else LineDisplay(_console, every_bar=follow)
        )
        try:
            with display:
                stop = session.run(display)
        except KeyboardInterrupt:
            _errors.print("interrupted; the same command goes on from the journal")
            raise typer.Exit(_INTERRUPTED) from None
        if not _console.is_interactive:
            _console.print(account_table(session.trader, pair=pair, quote=quote))
        _console.print(f"Journal: {book.path.resolve()}", soft_wrap=True)
    for name, fault in (source_feed.unreadable if isinstance(source_feed, FileFeed) else {}).items():
        _errors.print(f"[yellow]warning:[/] {name} was never whole: {escape(fault)}", soft_wrap=True, highlight=False)
    if stop is not None:
        _errors.print(f"[bold red]stopped:[/] {escape(stop.message)}", soft_wrap=True, highlight=False)
        raise typer.Exit(STOPPED)


def _feed(path: Path, source: str, follow: bool, settings: Settings, manifest: JsonDict) -> MarketFeed:
    from archetype_dagster.paper_trading import CaptureFeed, FileFeed, MessageBars
    from archetype_dagster.paper_trading.source_feed import SourceFeed

    if source == "bars":
        return FileFeed(path, follow=follow)
    if follow:
        raise SettingsError(f"only files of bars can be followed, got --source {source}")
    if source == "binance-capture":
        spec = settings.pair(manifest["pair"])
        bars = MessageBars(
            f"{spec.base}{spec.quote}", bar_minutes=manifest["bar_minutes"], levels=settings.market.book_levels
        )
        return CaptureFeed(path, bars)
    return SourceFeed(settings, manifest["pair"])
