"""Puts what happens to an account into its portfolio and into the record, and tells whoever waits for fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.orders import Cause, Fill, Liquidity, Order
from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.backtest.engine.recorder import Recorder
from archetype_dagster.settings import EngineSettings, ExecutionSettings

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc(micros: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=micros)


class Bookkeeper:
    """The account's books during a run.

    Args:
        instruments: the legs.
        portfolio: cash and positions.
        recorder: notes everything.
        settings: fees.
        execution: the commission that the settings leave to it.

    Attributes:
        now: microseconds since 1970; whoever runs the clock sets it.
        on_fill: called after each fill with the leg's number and the fill.
    """

    def __init__(
        self,
        instruments: Sequence[Instrument],
        portfolio: Portfolio,
        recorder: Recorder,
        settings: EngineSettings,
        execution: ExecutionSettings,
    ) -> None:
        self.now = 0
        self.on_fill: Callable[[int, Fill], None] = lambda leg, fill: None
        self._instruments, self._portfolio, self._recorder = instruments, portfolio, recorder
        self._taker = execution.commission_rate if settings.taker_rate is None else settings.taker_rate
        self._maker = self._taker if settings.maker_rate is None else settings.maker_rate
        self._fee_at_fill = settings.fee_basis == "fill"
        self._forced_rate = settings.margin.liquidation_fee_rate

    def fill(
        self,
        leg: int,
        number: int,
        order: Order,
        size: float,
        paid: float,
        *,
        cause: Cause = "order",
        liquidity: Liquidity = "taker",
        beyond: float = 0.0,
    ) -> None:
        """Book a fill of an order: `size` base units for `paid` quote units."""
        instrument, holding = self._instruments[leg], self._portfolio.holdings[leg]
        at_mark = size * holding.mark
        sign = 1.0 if order.side == "buy" else -1.0
        fee = (self._taker if liquidity == "taker" else self._maker) * (paid if self._fee_at_fill else at_mark)
        forced_fee = self._forced_rate * at_mark if cause == "liquidation" else 0.0
        realised = self._portfolio.fill(leg, sign * size, paid, fee + forced_fee)
        price, side, tag, after = paid / size, order.side, order.tag, holding.position
        slippage = sign * (paid - at_mark)
        named = (self.now, instrument.symbol, number, tag, cause)
        costs = (size, price, paid, beyond, slippage, fee, forced_fee)
        self._recorder.fills.append((*named, side, *costs, liquidity, realised, after, holding.entry))
        self.note_equity("fill")
        made = (side, size, price, fee + forced_fee, liquidity, beyond, realised, after)
        self.on_fill(leg, Fill(utc(self.now), instrument, number, tag, cause, *made))

    def funding(self, leg: int, rate: float, mark: float) -> None:
        """Settle funding on a leg's position."""
        position = self._portfolio.holdings[leg].position
        if position:
            amount = self._portfolio.pay_funding(leg, rate, mark)
            self._recorder.funding.append((self.now, self._instruments[leg].symbol, position, mark, rate, amount))
            self.note_equity("funding")

    def refuse(self, leg: int | None, number: int, tag: str, reason: str, detail: str, size: float | None) -> None:
        """Note an order, or the part `size` of one, that will not be."""
        symbol = None if leg is None else self._instruments[leg].symbol
        self._recorder.rejections.append((self.now, symbol, number, tag, reason, detail, size))

    def note_equity(self, event: str) -> None:
        """Sample the net value."""
        self._recorder.equity.append((self.now, event, self._portfolio.net_value))
