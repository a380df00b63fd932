"""A deterministic stand-in for a bundle, and a process that paper trades with it until it is killed.

Run as a script it is told folders on its input, one a line, and forks a fresh process for each: what is
imported is imported once, and every trader starts with nothing but what is on disk. A folder of bars is followed
until nothing new was there at one look. Given the folder of a bundle, it trades that instead.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from archetype_dagster.deployment import OnnxPolicy
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_costs import BarCosts
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.single_bar import read_bar
from archetype_dagster.paper_trading import Clock, FileFeed, Journal, PaperSession
from archetype_dagster.settings.paper_trading import PaperTradingSettings

WARMUP, HORIZON = 4, 6


@dataclass(frozen=True)
class StandInDecision:
    timestamp: datetime
    action: int
    base_action: int
    code: int
    tau: int
    overridden: bool


class StandInPolicy:
    """Trades on a moving average that every bar since the last gap has entered, so that a lost bar shows for ever."""

    def __init__(self, *, bar_minutes: int = 10, delay: int = 0, boundary: str = "carry") -> None:
        self.manifest = {
            "pair": "ETH",
            "quote": "USDT",
            "bar_minutes": bar_minutes,
            "max_position": 2.0,
            "commission_rate": 0.0002,
            "execution_delay_bars": delay,
            "horizon_boundary": boundary,
            "warmup_bars": WARMUP,
        }
        self._costs = BarCosts(2.0, 0.0002, "extrapolate", ImpactCurve.default())
        self.reset()

    def reset(self) -> None:
        self._end, self._bars, self._mean, self._decided = None, 0, 0.0, 0

    def on_bar(self, bar: Mapping[str, Any]) -> StandInDecision | None:
        seen = read_bar(bar)
        if self._end is not None and seen.timestamp <= self._end:
            raise MarketDataError("must grow from bar to bar", field="timestamp")
        if self._end is None or (seen.timestamp - self._end).total_seconds() != 60 * self.manifest["bar_minutes"]:
            self._bars = self._decided = 0
        self._end, self._bars = seen.timestamp, self._bars + 1
        close = float(bar["close"])
        self._mean = close if self._bars == 1 else 0.9 * self._mean + 0.1 * close
        if self._bars <= WARMUP:
            return None
        tau = self._decided % HORIZON
        self._decided += 1
        action = 1 + (close > self._mean * 1.0005) - (close < self._mean * 0.9995)
        return StandInDecision(seen.timestamp, action, action, 0, tau, False)

    def position(self, action: int) -> float:
        return 2.0 * (action - 1)

    def cost(self, bar: Mapping[str, Any], action_from: int, action_to: int) -> float:
        return self._costs.loss(read_bar(bar), action_from, action_to)

    def state(self) -> dict[str, Any]:
        end = None if self._end is None else self._end.isoformat()
        return {"end": end, "bars": self._bars, "mean": self._mean, "decided": self._decided}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._end = None if state["end"] is None else datetime.fromisoformat(state["end"])
        self._bars, self._mean, self._decided = state["bars"], state["mean"], state["decided"]


class Silent:
    def show(self, trader: Any, record: Any) -> None:
        pass


class Idle(Exception):
    """A followed feed has given all that it has."""


def until_idle() -> Clock:
    """Waits in no time, twice to see a file twice, and once more after its bars."""
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            raise Idle

    return Clock(wait=wait)


def trade(
    directory: Path, feed: Path, settings: PaperTradingSettings, display: Any = None, bundle: Path | None = None
) -> Any:
    """A session over a recorded feed to its end, or a followed one; why it stopped, None at the end."""
    policy = StandInPolicy() if bundle is None else OnnxPolicy.load(bundle)
    name = "stand-in" if bundle is None else policy.bundle.hash
    with Journal(directory) as journal:
        feed_of_bars = FileFeed(feed, follow=feed.is_dir())
        session = PaperSession.start(policy, feed_of_bars, journal, settings, bundle=name)
        try:
            return session.run(display or Silent(), until_idle())
        except Idle:
            return None


class KilledAt:
    """Kills its process with SIGKILL when it has entered or left functions so many times, those in C included.

    Counting instead of timing makes the moment the same on every machine, however busy, and any moment possible:
    before, after and between writes, within the recovery too.
    """

    def __init__(self, moment: int, *, at_work: bool) -> None:
        self.count, self.first_record, self._at_work = 0, 0, at_work
        self._moment = None if at_work else moment
        self._later = moment

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        self.count += 1
        if self.count == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def show(self, trader: Any, record: Any) -> None:
        """Note the first record; one who is killed at work is so some moments after it."""
        if not self.first_record:
            self.first_record = self.count
            if self._at_work:
                self._moment = self.count + self._later


def serve(bundle: Path | None) -> None:
    settings = PaperTradingSettings(limits={"stale_bars": None, "max_drawdown": None})
    ImpactCurve.default()
    for line in sys.stdin:
        directory, feed, phase, moment = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            killed = KilledAt(int(moment), at_work=phase == "work")
            sys.setprofile(killed)
            trade(Path(directory), Path(feed), settings, killed, bundle)
            sys.setprofile(None)
            print(killed.first_record, killed.count, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
