"""What a paper trader shows in a terminal: a table that keeps still, or one line a bar where nobody watches."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from archetype_dagster.paper_trading.trader import PaperTrader
from archetype_dagster.types import JsonDict


def account_table(trader: PaperTrader, *, pair: str, quote: str, last: JsonDict | None = None) -> Table:
    """Time, price, position, net value, profit, the counts of faults and the last record's decision."""
    table = Table(title=f"{pair} paper trading", title_justify="left", show_header=False)
    table.add_column("what", style="dim")
    table.add_column("value", justify="right")
    account = trader.account
    end = None if trader.last_end is None else f"{trader.last_end:%Y-%m-%d %H:%M} UTC"
    rows = {"last bar used": end or "none yet"}
    if account is not None:
        profit = account.net_value - account.capital
        rows |= {
            "price": f"{account.mark:,.6g} {quote}",
            "position": f"{trader.position:g} {pair}",
            "net value": f"{account.net_value:,.2f} {quote}",
            "profit": f"{profit:+,.2f} {quote} ({profit / account.capital:+.2%})",
            "drawdown": f"{account.drawdown:.2%}",
        }
    if last is not None:
        rows["last decision"] = _decision(last)
    rows |= {name.replace("_", " "): f"{count:,}" for name, count in sorted(trader.counts.items())}
    for name, value in rows.items():
        table.add_row(name, value)
    if trader.stopped is not None:
        table.add_row("stopped", escape(trader.stopped.message), style="bold red")
    return table


class LiveDisplay:
    """The table, redrawn after every record; a context."""

    def __init__(self, console: Console, *, pair: str, quote: str) -> None:
        self._pair, self._quote = pair, quote
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, trader: PaperTrader, record: JsonDict) -> None:
        """See `session.Display.show`."""
        self._live.update(account_table(trader, pair=self._pair, quote=self._quote, last=record), refresh=True)


class LineDisplay:
    """A line for each record that says something: every bar while following, else trades, faults and stops.

    Args:
        console: where to.
        every_bar: also bars on which nothing happened.
    """

    def __init__(self, console: Console, *, every_bar: bool) -> None:
        self._console, self._every_bar = console, every_bar

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, trader: PaperTrader, record: JsonDict) -> None:
        """See `session.Display.show`."""
        if record["kind"] != "bar":
            self._print(record, record["kind"])
        elif self._every_bar or record["notes"] or record["position"] != record["position_before"]:
            price, position, value = record["price"], record["position"], record["net_value"]
            self._print(record, f"{_decision(record)}, position {position:g} at {price:,.6g}, net value {value:,.2f}")

    def _print(self, record: JsonDict, text: str) -> None:
        end = record["bar_end"]
        time = "-" if end is None else f"{datetime.fromisoformat(end):%Y-%m-%d %H:%M}"
        self._console.print(
            "; ".join([f"{time} {text}", *record["notes"]]), soft_wrap=True, markup=False, highlight=False
        )


def _decision(record: JsonDict) -> str:
    if record["kind"] != "bar":
        return str(record["kind"])
    decision = record["decision"]
    if decision is None:
        return "warming up"
    return f"{decision['action']} (archetype {decision['code']}, bar {decision['tau'] + 1} of its horizon)"
