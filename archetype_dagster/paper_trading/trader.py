"""The paper trader: one delivered bar in, one journal record out; everything it knows is in its state.

It reads no clock and no file, so the same bars in the same order give the same records in every process.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.paper_trading.account import Account, Market
from archetype_dagster.paper_trading.admission import SeenBar
from archetype_dagster.paper_trading.faults import LastBar, Refused, UsableBar, usable
from archetype_dagster.paper_trading.limits import Stop, beyond_limits, lost
from archetype_dagster.paper_trading.policy import BarDecision, BarPolicy
from archetype_dagster.settings.paper_trading import PaperTradingSettings
from archetype_dagster.types import ACTION_NAMES, FLAT, LONG, JsonDict


@dataclass(frozen=True)
class _Order:
    """A decision on its way to the book."""

    action: int
    starts_horizon: bool


class PaperTrader:
    """Decides with a policy, fills against the book and keeps the account.

    The rules are those of the evaluation: the action of bar t executes on the book of bar t +
    execution_delay_bars of the same segment, bars without features are flat, orders on their way at a gap
    are cancelled, and under the horizon boundary `settle` a horizon's first trade comes after a close.

    Args:
        policy: the bundle, freshly loaded.
        settings: limits and fault policies.

    Attributes:
        account: None before the first bar that may be traded on.
        counts: bars by fault; `missing_bar` counts the absent ones.
        stopped: why no further bar is taken; None while trading.
    """

    def __init__(self, policy: BarPolicy, settings: PaperTradingSettings) -> None:
        self._policy, self._settings = policy, settings
        manifest = policy.manifest
        self._length = timedelta(minutes=self.bar_minutes)
        self._delay = int(manifest["execution_delay_bars"])
        self._settles = manifest["horizon_boundary"] == "settle"
        self._warm_up: deque[Mapping[str, Any]] = deque(maxlen=int(manifest["warmup_bars"]))
        self._pending: tuple[_Order, ...] = ()
        self._last: LastBar | None = None
        self._may_be_stale = True
        self._told: set[str] = set()
        self.account: Account | None = None
        self.counts: Counter[str] = Counter()
        self.stopped: Stop | None = None

    @property
    def bar_minutes(self) -> int:
        """Length of a bar."""
        return int(self._policy.manifest["bar_minutes"])

    @property
    def position(self) -> float:
        """Position held, base units."""
        return self._policy.position(FLAT if self.account is None else self.account.action)

    @property
    def last_end(self) -> datetime | None:
        """End of the last bar used, UTC."""
        return None if self._last is None else self._last.end

    @property
    def counts_silence(self) -> bool:
        """False from a `go_on` after a stop until the next bar used, which may come as late as it will."""
        return self._may_be_stale

    def take(self, seen: SeenBar) -> JsonDict | None:
        """The record of a delivered bar.

        None for one before the start, which only warms the features up, and for one that is not used where a
        record has told so of its end, or of its cursor where it has no end, unless it stops trading.

        The record's `kind` is `bar`; `fault` where the bar was not used; or `stop`, without a cursor, where the
        bar came so late that trading stops without it. Its `stop` tells why trading stopped, None where it goes on.

        Raises:
            ValueError: trading has stopped.
            MarketDataError: under the depth policy `reject`, a book too shallow for the trade.
        """
        if self.stopped is not None:
            raise ValueError(f"trading has stopped: {self.stopped.message}")
        start = self._settings.start
        if start is not None and seen.end is not None and seen.end < start:
            if self.account is None:
                self._remember(seen)
            return None
        try:
            bar = usable(seen, self._last, self._settings.faults, length=self._length)
            if self._is_stale(bar.end):
                return self.go_stale()
            return self._trade(bar)
        except Refused as refused:
            name = seen.cursor if seen.end is None else seen.end.isoformat()
            if name in self._told and not refused.stops:
                return None
            self._told.add(name)
            self.counts[refused.fault] += 1
            notes = [f"{refused.fault}: {refused}"]
            if refused.stops:
                self.stopped = Stop(refused.fault, notes[0])
                notes.append(f"position kept at {self.position:g}: the bar is not used, nor is its book")
            end = None if seen.end is None else seen.end.isoformat()
            return self._record("fault", end, seen.cursor, {}, notes)

    def go_stale(self) -> JsonDict:
        """Stop because no usable bar came for too long; the record of it. The position is kept: there is no book."""
        since = "the start" if self.last_end is None else self.last_end.isoformat()
        message = f"no usable bar for {self._settings.limits.stale_bars} bar lengths after {since}"
        self.stopped = Stop("stale_data", message)
        notes = [f"position kept at {self.position:g}: there is no book to close it on"]
        return self._record("stop", None, None, {}, notes)

    def go_on(self) -> JsonDict:
        """Trade again, after a stop with the drawdown counted from the present net value; the record of it.

        Raises:
            SettingsError: the account is ruined.
        """
        if self.account is not None and self.account.net_value <= 0:
            raise SettingsError("a ruined account cannot trade again; begin another journal")
        notes = []
        if self.stopped is not None:
            notes = [f"trading again after {self.stopped.limit}"]
            self.stopped, self._may_be_stale = None, False
            if self.account is not None:
                self.account = replace(self.account, peak=self.account.net_value)
        return self._record("resumed", None, None, {}, notes)

    def state(self) -> JsonDict:
        """Everything the next bars need but the records of unused ones, as plain JSON values."""
        return {
            "policy": self._policy.state(),
            "account": None if self.account is None else self.account.as_dict(),
            "pending": [vars(order) for order in self._pending],
            "last": None if self._last is None else [self._last.end.isoformat(), self._last.close],
            "may_be_stale": self._may_be_stale,
            "warm_up": [{**row, "timestamp": row["timestamp"].isoformat()} for row in self._warm_up],
            "counts": dict(sorted(self.counts.items())),
            "stopped": None if self.stopped is None else self.stopped.as_dict(),
        }

    def restore(self, state: JsonDict, records: Iterable[JsonDict] = ()) -> None:
        """Go on from what `state` gave.

        Args:
            state: after the last record.
            records: every record, or those of kind `fault` alone.
        """
        self._told = {record["bar_end"] or record["cursor"] for record in records if record["kind"] == "fault"}
        self._policy.restore(state["policy"])
        self.account = None if state["account"] is None else Account(**state["account"])
        self._pending = tuple(_Order(**order) for order in state["pending"])
        last = state["last"]
        self._last = None if last is None else LastBar(datetime.fromisoformat(last[0]), last[1])
        self._may_be_stale = state["may_be_stale"]
        rows = ({**row, "timestamp": datetime.fromisoformat(row["timestamp"])} for row in state["warm_up"])
        self._warm_up = deque(rows, maxlen=self._warm_up.maxlen)
        self.counts = Counter(state["counts"])
        self.stopped = None if state["stopped"] is None else Stop(**state["stopped"])

    def _is_stale(self, end: datetime) -> bool:
        limit = self._settings.limits.stale_bars
        if limit is None or self.account is None or self._last is None or not self.counts_silence:
            return False
        return end - self._last.end > limit * self._length

    def _remember(self, seen: SeenBar) -> None:
        """Keep a bar before the start for the features."""
        with suppress(Refused):
            bar = usable(seen, self._last, self._settings.faults, length=self._length)
            self._warm_up.append(bar.row)
            self._last = LastBar(bar.end, float(bar.row["close"]))

    def _trade(self, bar: UsableBar) -> JsonDict:
        try:
            market = Market(self._policy, bar.row)
            account = self._begun(market) if self.account is None else self.account
            decision = self._policy.on_bar(bar.row)
        except MarketDataError as error:
            raise Refused("faulty_bar", str(error), self._settings.faults.faulty_bar) from error
        notes = [f"{bar.missing} bars missing before"] if bar.missing else []
        notes += [f"{fault}: {getattr(self._settings.faults, fault)}" for fault in bar.flags]
        path = self._due(decision, bar)
        position = self._policy.position(path[-1] if path else account.action)
        limits = self._settings.limits
        stop = beyond_limits(position, market.mark, limits)
        fill = market.trade(account, () if stop else path)
        stop = stop or lost(fill.account, limits)
        fee, slippage = fill.fee, fill.slippage
        if stop is not None:
            notes.append(stop.message)
            if limits.close_on_stop and stop.limit != "ruin":
                fill = market.trade(fill.account, (FLAT,))
                fee, slippage = fee + fill.fee, slippage + fill.slippage
        before = self._policy.position(account.action)
        self.account, self.stopped = fill.account, stop
        self._last, self._may_be_stale = LastBar(bar.end, float(bar.row["close"])), True
        self._warm_up.clear()
        self.counts.update(bar.flags)
        if bar.missing:
            self.counts["missing_bar"] += bar.missing
        values = {
            "decision": _decision_dict(decision),
            "position_before": before,
            "position": self.position,
            "price": market.mark,
            "fee": fee,
            "slippage": slippage,
            "cash": fill.account.cash,
            "net_value": fill.account.net_value,
        }
        return self._record("bar", bar.end.isoformat(), bar.cursor, values, notes)

    def _begun(self, market: Market) -> Account:
        """The account before its first bar, the policy warmed up by the bars before."""
        self._policy.reset()
        for row in self._warm_up:
            # A bar that the policy refuses is a gap to it, before the start as after.
            with suppress(MarketDataError):
                self._policy.on_bar(row)
        capital = self._settings.initial_capital
        return Account.opened(self._policy.position(LONG) * market.mark if capital is None else capital, market.mark)

    def _due(self, decision: BarDecision | None, bar: UsableBar) -> tuple[int, ...]:
        """Actions to go through at this bar, none where no order arrives; a gap cancels those on their way."""
        starts = decision is not None and self._settles and decision.tau == 0
        order = _Order(FLAT if decision is None else decision.action, starts)
        self._pending = (*(self._pending if bar.follows else ()), order)
        if len(self._pending) <= self._delay:
            return ()
        due, *rest = self._pending
        self._pending = tuple(rest)
        return (FLAT, due.action) if due.starts_horizon else (due.action,)

    def _record(
        self, kind: str, bar_end: str | None, cursor: str | None, values: JsonDict, notes: list[str]
    ) -> JsonDict:
        stop = None if self.stopped is None else self.stopped.as_dict()
        return {"kind": kind, "bar_end": bar_end, "cursor": cursor, **values, "notes": notes, "stop": stop}


def _decision_dict(decision: BarDecision | None) -> JsonDict | None:
    if decision is None:
        return None
    return {
        "action": ACTION_NAMES[decision.action],
        "base_action": ACTION_NAMES[decision.base_action],
        "code": decision.code,
        "tau": decision.tau,
        "overridden": decision.overridden,
    }
