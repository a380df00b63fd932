"""Backtrader: an event-driven engine. Its broker keeps position, cash and value; imported only where it is used."""

from __future__ import annotations

from typing import Final

import backtrader as bt
import numpy as np

from archetype_dagster.backtest.crosscheck.signals import EngineAccount, Signals
from archetype_dagster.types import FloatArray

VERSION: Final = str(bt.__version__)


class _Feed(bt.feed.DataBase):  # type: ignore[misc]
    """Bars that open at the fill price and close at the mark."""

    params = (("signals", None), ("timeframe", bt.TimeFrame.Minutes))

    def start(self) -> None:
        """Begin at the first row."""
        super().start()
        self._rows = zip(self.p.signals.fill_price.tolist(), self.p.signals.mark.tolist(), strict=True)
        self._served = 0

    def _load(self) -> bool:
        row = next(self._rows, None)
        if row is None:
            return False
        fill_price, mark = row
        # A clock that only counts rows: two of one bar would otherwise share a time.
        self._served += 1
        self.lines.datetime[0] = float(self._served)
        self.lines.open[0], self.lines.close[0] = fill_price, mark
        self.lines.high[0], self.lines.low[0] = max(row), min(row)
        self.lines.volume[0] = self.lines.openinterest[0] = 0.0
        return True


class _Commission(bt.CommInfoBase):  # type: ignore[misc]
    """A fraction of the traded notional at the bar's close, which is the mark."""

    params = (("feed", None), ("stocklike", True), ("commtype", bt.CommInfoBase.COMM_PERC), ("percabs", True))

    def _getcommission(self, size: float, price: float, pseudoexec: bool) -> float:
        del price, pseudoexec
        return abs(size) * float(self.p.feed.close[0]) * float(self.p.commission)


class _Follower(bt.Strategy):  # type: ignore[misc]
    """Orders each row's target at the open, as a market order, and notes the broker's account at the close."""

    params = (("signals", None),)

    def start(self) -> None:
        """Take the targets out of their array once."""
        self._targets = self.p.signals.target.tolist()
        self.account: list[tuple[float, float, float]] = []

    def next_open(self) -> None:
        """Order the row's target where it is not held yet."""
        target = self._targets[len(self.data) - 1]
        if target != self.position.size:
            self.order_target_size(target=target)

    # On the very first bar the engine calls only this one.
    prenext_open = next_open

    def next(self) -> None:
        """Note position, cash and value after the row's fills."""
        self.account.append((self.position.size, self.broker.getcash(), self.broker.getvalue()))


def replay_signals(signals: Signals) -> EngineAccount:
    """Trade the signals through Backtrader's broker, market orders at the open, no margin on shorts.

    Args:
        signals: n rows.

    Returns:
        The broker's own position, cash and value after each of the n rows.
    """
    cerebro = bt.Cerebro(cheat_on_open=True, stdstats=False, runonce=False)
    feed = _Feed(signals=signals)
    cerebro.adddata(feed)
    cerebro.broker.setcash(signals.initial_capital + signals.credit)
    cerebro.broker.addcommissioninfo(_Commission(commission=signals.commission_rate, feed=feed))
    cerebro.addstrategy(_Follower, signals=signals)
    [follower] = cerebro.run()
    account: FloatArray = np.array(follower.account, dtype=np.float64).reshape(-1, 3)
    return EngineAccount(position=account[:, 0], cash=account[:, 1], net_value=account[:, 2])
