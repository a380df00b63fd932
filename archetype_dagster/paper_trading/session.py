"""A paper trader at work: bars from a feed, each committed to the journal before the next is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from archetype_dagster.errors import ArtifactError
from archetype_dagster.paper_trading.admission import SeenBar, look_at
from archetype_dagster.paper_trading.feeds import MarketFeed
from archetype_dagster.paper_trading.journal import Journal
from archetype_dagster.paper_trading.limits import Stop
from archetype_dagster.paper_trading.policy import BarPolicy
from archetype_dagster.paper_trading.trader import PaperTrader
from archetype_dagster.settings.paper_trading import PaperTradingSettings
from archetype_dagster.types import JsonDict


class Display(Protocol):
    """Where a session shows what it does."""

    def show(self, trader: PaperTrader, record: JsonDict) -> None:
        """Show a record that was just committed."""


@dataclass(frozen=True)
class Clock:
    """The time while following: how far it is in seconds, and how to wait for some of them."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


@dataclass
class PaperSession:
    """A trader, its feed and its journal, which belong together from `start` on.

    Attributes:
        trader: decides and keeps the account.
        feed: delivers the bars.
        journal: open.
        settings: limits and fault policies.
        identity: what a journal is of: the bundle and the settings.
    """

    trader: PaperTrader
    feed: MarketFeed
    journal: Journal
    settings: PaperTradingSettings
    identity: JsonDict

    @classmethod
    def start(
        cls,
        policy: BarPolicy,
        feed: MarketFeed,
        journal: Journal,
        settings: PaperTradingSettings,
        *,
        bundle: str,
        go_on: bool = False,
    ) -> Self:
        """Begin, or go on where the journal ends: no bar in it is decided on again and none after it left out.

        Args:
            policy: the bundle, freshly loaded.
            feed: freshly made.
            journal: new or of an earlier process.
            settings: limits and fault policies.
            bundle: hash of the bundle.
            go_on: trade again where a limit stopped the earlier process; other settings are then allowed.

        Raises:
            ArtifactError: the journal is another bundle's or was begun with other settings.
            SettingsError: a ruined account is told to go on.
        """
        trader = PaperTrader(policy, settings)
        identity: JsonDict = {"bundle": bundle, "settings": settings.content_hash}
        session = cls(trader, feed, journal, settings, identity)
        if journal.state is None:
            return session
        begun = journal.state["identity"]
        if begun["bundle"] != bundle:
            raise ArtifactError(
                f"{journal.directory} is the journal of bundle {begun['bundle'][:12]}, not of {bundle[:12]}; "
                "name another folder with --journal"
            )
        if begun["settings"] != identity["settings"] and not go_on:
            raise ArtifactError(
                f"{journal.directory} was begun with other paper_trading settings; give those, name another folder "
                "with --journal, or say --go-on to trade on with these"
            )
        for record in journal.records():
            if record["cursor"] is not None:
                feed.resume(record["cursor"])
        trader.restore(journal.state["trader"])
        if go_on:
            session._commit(trader.go_on())
        return session

    def run(self, display: Display, clock: Clock | None = None) -> Stop | None:
        """Trade until the feed ends or a limit stops it; the stop, None where the feed ended.

        While following, the time since the last usable bar, or since the start of this process, is measured too.

        Args:
            display: is shown every record.
            clock: the time while following; the machine's by default.

        Raises:
            MarketDataError: the feed as a whole cannot be read.
            ArtifactError: the journal cannot be written.
        """
        clock = clock or Clock()
        minutes = self.trader.bar_minutes
        heard = clock.now()
        while self.trader.stopped is None:
            batch = self.feed.poll()
            for seen in look_at(batch, bar_minutes=minutes):
                if self._take(seen, display):
                    heard = clock.now()
                if self.trader.stopped is not None:
                    break
            if self.trader.stopped is not None or (batch and self.feed.ended):
                continue
            if self.feed.ended:
                return None
            limit = self.settings.limits.stale_bars
            if limit is not None and clock.now() - heard > limit * minutes * 60:
                self._show(self.trader.go_stale(), display)
            elif not batch:
                clock.wait(self.settings.poll_seconds)
        return self.trader.stopped

    def _take(self, seen: SeenBar, display: Display) -> bool:
        """Whether a delivered bar was of use, be it to warm the features up."""
        record = self.trader.take(seen)
        if record is not None:
            self._show(record, display)
        return record is None or record["kind"] == "bar"

    def _show(self, record: JsonDict, display: Display) -> None:
        self._commit(record)
        display.show(self.trader, record)

    def _commit(self, record: JsonDict) -> None:
        self.journal.commit(record, {"identity": self.identity, "trader": self.trader.state()})
