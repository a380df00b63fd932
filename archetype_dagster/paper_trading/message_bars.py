"""Bars from an exchange's messages as they arrive: a book of depth updates, and the trades between two bar ends.

This is the part that a connector to a live websocket shares with the recorded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from heapq import nlargest, nsmallest
from itertools import chain, islice, repeat, zip_longest
from math import fsum, inf, isfinite
from typing import Any, Final, NamedTuple

from archetype_dagster.errors import MarketDataError

_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EDGE_SHARE: Final = 0.1


class _Trade(NamedTuple):
    time: int
    number: int
    price: float
    size: float
    taker_buys: bool


class MessageBars:
    """Binance's depth updates and trades of one symbol, message by message, into bars.

    The rules are those of `BinanceCapture` and `build_bars`: a book at a bar's end holds every update received
    by then and no later one, trades count from a bar's start until before its end, there is no snapshot, so
    that a book counts as known `warm_up_seconds` after the numbers last broke off, and a bar whose last
    update is older than `stale_seconds`, or whose beginning was missed, is left out. A bar without a trade has
    the mid at its end for all four prices.

    Args:
        symbol: e.g. BTCUSDT; messages of others are passed over.
        bar_minutes: length of a bar.
        levels: levels kept on each side.
        warm_up_seconds: see above.
        stale_seconds: see above.
    """

    def __init__(
        self, symbol: str, *, bar_minutes: int, levels: int = 25, warm_up_seconds: int = 120, stale_seconds: float = 60
    ) -> None:
        self._symbol, self._levels = symbol, levels
        self._bar = bar_minutes * 60 * _SECOND
        self._warm_up, self._stale = warm_up_seconds * _SECOND, round(stale_seconds * _SECOND)
        self._tolerance = min(self._stale, round(_EDGE_SHARE * self._bar))
        self._bids: dict[float, float] = {}
        self._asks: dict[float, float] = {}
        self._last_update, self._known_from, self._changed = -1, inf, -1
        self._trades: dict[int, _Trade] = {}
        self._first = -1
        self._now = -1
        self._end = -1

    def push(self, clock: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Take the next message; the bars that it shows to be over, none or one as a rule, oldest first.

        Args:
            clock: receiver's clock, microseconds since 1970; one that steps back counts as standing still.
            message: the decoded message, without the envelope of a combined stream.

        Raises:
            MarketDataError: a depth update or trade without its fields.
        """
        kind = message.get("e")
        if message.get("s") != self._symbol or kind not in ("depthUpdate", "trade"):
            return []
        self._now = max(clock, self._now)
        if self._first < 0:
            self._first = self._now
            self._end = -(-self._now // self._bar) * self._bar
        bars = self._closed()
        try:
            if kind == "trade":
                self._take_trade(message)
            else:
                self._take_update(message)
        except (KeyError, TypeError, ValueError) as error:
            raise MarketDataError(f"not a {kind} message of a Binance stream ({error!r})") from error
        return bars

    def _take_trade(self, message: Mapping[str, Any]) -> None:
        trade = _Trade(self._now, int(message["t"]), float(message["p"]), float(message["q"]), not message["m"])
        if 0 < trade.price < inf and 0 < trade.size < inf:
            self._trades.setdefault(trade.number, trade)

    def _take_update(self, message: Mapping[str, Any]) -> None:
        last, before = int(message["u"]), message.get("pu")
        follows = before == self._last_update if before is not None else int(message["U"]) == self._last_update + 1
        if not follows:
            self._bids.clear()
            self._asks.clear()
            self._known_from = self._now + self._warm_up
        self._last_update, self._changed = last, self._now
        for side, levels in ((self._bids, message["b"]), (self._asks, message["a"])):
            for price, size in ((float(level[0]), float(level[1])) for level in levels):
                if not (isfinite(price) and price > 0 and 0 <= size < inf):
                    raise ValueError(f"price {price}, size {size}")
                if size:
                    side[price] = size
                else:
                    side.pop(price, None)

    def _closed(self) -> list[dict[str, Any]]:
        bars = []
        while self._now > self._end:
            bar = self._bar_at(self._end)
            if bar is not None:
                bars.append(bar)
            self._trades = {number: trade for number, trade in self._trades.items() if trade.time >= self._end}
            self._end += self._bar
        return bars

    def _bar_at(self, end: int) -> dict[str, Any] | None:
        missed = end - self._bar < self._first - self._tolerance
        if missed or self._changed < self._known_from or end - self._changed > self._stale:
            return None
        if not (self._bids and self._asks):
            return None
        bids, asks = nlargest(self._levels, self._bids.items()), nsmallest(self._levels, self._asks.items())
        row: dict[str, Any] = {"timestamp": _EPOCH + timedelta(microseconds=end), **self._prices(end, bids, asks)}
        nothing: tuple[None, None] = (None, None)
        sides = zip_longest(bids, asks, fillvalue=nothing)
        padded = islice(chain(sides, repeat((nothing, nothing))), self._levels)
        for level, (bid, ask) in enumerate(padded, 1):
            row[f"bid{level}_price"], row[f"bid{level}_size"] = bid
            row[f"ask{level}_price"], row[f"ask{level}_size"] = ask
        return {**row, "book_source": "observed"}

    def _prices(
        self, end: int, bids: list[tuple[float, float]], asks: list[tuple[float, float]]
    ) -> dict[str, float | None]:
        trades = sorted(trade for trade in self._trades.values() if trade.time < end)
        if not trades:
            mid = (bids[0][0] + asks[0][0]) / 2
            return {**dict.fromkeys(("open", "high", "low", "close"), mid), "volume": 0.0, "taker_buy_volume": None}
        prices = [trade.price for trade in trades]
        volume = fsum(trade.size for trade in trades)
        bought = fsum(trade.size for trade in trades if trade.taker_buys)
        return {
            "open": prices[0],
            "high": max(prices),
            "low": min(prices),
            "close": prices[-1],
            "volume": volume,
            # All on one side reads like takers that were not recorded, as in the ingestion.
            "taker_buy_volume": bought if 0 < bought < volume else None,
        }
