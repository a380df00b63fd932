"""A paper trader at work: bars from a feed, each committed to the journal before the next is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, Self

from archetype_dagster.errors import ArtifactError
from archetype_dagster.paper_trading.admission import SeenBar, look_at
from archetype_dagster.paper_trading.feeds import MarketFeed
from archetype_dagster.paper_trading.journal import Journal
from archetype_dagster.paper_trading.limits import Stop
from archetype_dagster.paper_trading.policy import BarPolicy
from archetype_dagster.paper_trading.trader import PaperTrader
from archetype_dagster.settings.paper_trading import PaperTradingSettings
from archetype_dagster.types import JsonDict

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Display(Protocol):
    """Where a session shows what it does."""

    def show(self, trader: PaperTrader, record: JsonDict) -> None:
        """Show a record that was just committed."""


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The time outside the bars.

    Attributes:
        now: seconds since some moment, which no change of the machine's clock touches.
        wait: lets so many seconds pass.
        utc: the machine's clock.
    """

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    utc: Callable[[], datetime] = _utc


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
            MarketDataError: the journal is another feed's; `run` says so where only reading the feed shows it.
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
        faults = []
        for record in journal.records():
            if record["cursor"] is not None:
                end = record["bar_end"]
                feed.resume(record["cursor"], None if end is None else datetime.fromisoformat(end))
            if record["kind"] == "fault":
                faults.append(record)
        trader.restore(journal.state["trader"], faults)
        if go_on:
            session._commit(trader.go_on())
        return session

    def run(self, display: Display, clock: Clock | None = None) -> Stop | None:
        """Trade until the feed ends or a limit stops it; the stop, None where the feed ended.

        While following, the time without a bar used is measured by the clock too. It goes on over a restart: it
        counts from the end of the last bar used, but leaves the feed one bar length for its next one. Where no
        bar was used yet, or a stopped trader was told to go on, it begins with the process.

        Args:
            display: is shown every record.
            clock: the time; the machine's by default.

        Raises:
            MarketDataError: the feed as a whole cannot be read, or is not the one that the journal is of.
            ArtifactError: the journal cannot be written.
        """
        clock = clock or Clock()
        minutes, limit = self.trader.bar_minutes, self.settings.limits.stale_bars
        heard, newest = clock.now() - self._silence(clock.utc()), _NEVER
        while self.trader.stopped is None:
            delivered = self.feed.poll()
            batch = look_at(delivered, bar_minutes=minutes, now=clock.utc())
            used = False
            for seen in batch:
                if self._take(seen, display):
                    used, heard = True, clock.now()
                if self.trader.stopped is not None:
                    return self.trader.stopped
            if self.feed.ended:
                if not batch:
                    return None
                continue
            before, newest = newest, max([newest, *(seen.end for seen in batch if seen.end is not None)])
            if limit is not None and clock.now() - heard > limit * minutes * 60:
                self._show(self.trader.go_stale(), display)
            elif not used and newest == before:
                # Nothing, or what came before: a feed may give its newest bar at every poll.
                clock.wait(self.settings.poll_seconds)
        return self.trader.stopped

    def _silence(self, now: datetime) -> float:
        """Seconds without a bar used before this process that count against the limit on stale data."""
        limit, last = self.settings.limits.stale_bars, self.trader.last_end
        if limit is None or last is None or not self.trader.counts_silence:
            return 0.0
        return min(max((now - last).total_seconds(), 0.0), (limit - 1) * self.trader.bar_minutes * 60.0)

    def _take(self, seen: SeenBar, display: Display) -> bool:
        """Whether a delivered bar was used, be it to warm the features up."""
        before = self.trader.last_end
        record = self.trader.take(seen)
        if record is not None:
            self._show(record, display)
        return self.trader.last_end != before

    def _show(self, record: JsonDict, display: Display) -> None:
        self._commit(record)
        display.show(self.trader, record)

    def _commit(self, record: JsonDict) -> None:
        self.journal.commit(record, {"identity": self.identity, "trader": self.trader.state()})
