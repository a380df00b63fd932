"""Where orders go: limits and margin are checked, the venue fills, the portfolio books, the recorder notes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from archetype_dagster.backtest.engine.book_records import Side
from archetype_dagster.backtest.engine.leg import Leg
from archetype_dagster.backtest.engine.margin import CrossMargin, MarginRates
from archetype_dagster.backtest.engine.orders import (
    Amend,
    Cancel,
    Cause,
    Fill,
    Instruction,
    KillSwitch,
    Liquidity,
    OpenOrder,
    Order,
    Target,
)
from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.backtest.engine.recorder import Recorder
from archetype_dagster.backtest.engine.risk import RiskGuard
from archetype_dagster.backtest.engine.venue import Made, Taken, Venue
from archetype_dagster.settings import EngineSettings, ExecutionSettings

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final = 1e-12


def utc(micros: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=micros)


class OrderDesk:
    """One account's orders during a run.

    Args:
        legs: what is traded.
        settings: fees, depth, margin and limits.
        execution: what the settings leave to it: commission and depth policy.
        cash: net value at the start, quote units.
        recorder: notes everything.

    Attributes:
        now: microseconds since 1970; whoever runs the clock sets it.
        portfolio: cash and positions.
        venues: one a leg.
        guard: limits, and whether trading has ended.
        on_fill: called after each fill with the leg's number and the fill.
    """

    def __init__(
        self,
        legs: Sequence[Leg],
        settings: EngineSettings,
        execution: ExecutionSettings,
        *,
        cash: float,
        recorder: Recorder,
    ) -> None:
        self.now = 0
        self.instruments = tuple(leg.instrument for leg in legs)
        self.portfolio = Portfolio(cash, [instrument.kind == "swap" for instrument in self.instruments])
        policy = settings.depth_policy or execution.depth_policy
        self.venues = tuple(
            Venue(leg.lot_size, leg.impact_curve, depth_policy=policy, self_trade=settings.self_trade) for leg in legs
        )
        self.guard = RiskGuard(settings.risk, [leg.max_position for leg in legs], initial_value=cash)
        self.on_fill: Callable[[int, Fill], None] = lambda leg, fill: None
        self._settings = settings
        self._taker = execution.commission_rate if settings.taker_rate is None else settings.taker_rate
        self._maker = self._taker if settings.maker_rate is None else settings.maker_rate
        rates = [MarginRates.of(settings.margin, is_swap=one.kind == "swap") for one in self.instruments]
        self._margin = CrossMargin(rates) if settings.margin.mode == "cross" else None
        limits = (*self.guard.max_positions, settings.risk.max_notional)
        self._checks_exposure = self._margin is not None or any(limit is not None for limit in limits)
        self._recorder = recorder
        self._legs = {instrument: number for number, instrument in enumerate(self.instruments)}
        self._next = 1
        self._queue: deque[tuple[int, Instruction]] = deque()
        self._pending: deque[tuple[int, int, Instruction]] = deque()
        self._is_busy = False

    def submit(self, instructions: Iterable[Instruction], *, due: int | None = None) -> list[int]:
        """Take instructions and give their numbers: carried out in order now, or at the bar that they are due.

        Raises:
            ValueError: something else than an instruction, or one for an instrument that is no leg.
        """
        numbers = []
        for instruction in instructions:
            self._check(instruction)
            numbers.append(self._next)
            if due is None:
                self._queue.append((self._next, instruction))
            else:
                self._pending.append((due, self._next, instruction))
            self._next += 1
        self._work()
        return numbers

    def arrive(self, row: int) -> None:
        """Carry out what is due at a bar."""
        while self._pending and self._pending[0][0] <= row:
            _, number, instruction = self._pending.popleft()
            self._queue.append((number, instruction))
        self._work()

    def book_made(self, leg: int, made: Iterable[Made]) -> None:
        """Book what resting orders got."""
        for number, order, size, paid in made:
            self._book(leg, number, order.tag, "order", order.side, size, paid, 0.0, "maker")
        self._work()

    def settle(self, leg: int, rate: float, mark: float) -> None:
        """Settle funding on a leg's position."""
        position = self.portfolio.holdings[leg].position
        if position:
            amount = self.portfolio.pay_funding(leg, rate, mark)
            self._recorder.funding.append((self.now, self.instruments[leg].symbol, position, mark, rate, amount))
            self.note_equity("funding")

    def look_after(self) -> None:
        """Close everything if the margin does not hold, stop if the drawdown is too deep."""
        if self._margin is not None and self._margin.is_breached(self.portfolio):
            self.withdraw_all("liquidation")
            self._close_all("liquidation")
            self.note_equity("liquidation")
        if self.guard.falls_too_far(self.portfolio.net_value):
            self.stop("max_drawdown")

    def stop(self, reason: str) -> None:
        """End trading: withdraw all orders, and close all positions where the settings say so."""
        if self.guard.stop(reason):
            self.withdraw_all("stopped")
            if self._settings.risk.close_on_stop:
                self._close_all("stop")

    def withdraw_all(self, reason: str) -> None:
        """Withdraw every resting and every pending order, each with this reason."""
        for leg, venue in enumerate(self.venues):
            for number, order in list(venue.resting.items()):
                self._refuse(leg, number, order.tag, reason, "withdrawn", venue.cancel(number))
        while self._pending:
            _, number, instruction = self._pending.popleft()
            if isinstance(instruction, Order | Target):
                size = instruction.size if isinstance(instruction, Order) else None
                leg = self._legs[instruction.instrument]
                self._refuse(leg, number, instruction.tag, reason, "not yet executed", size)

    def open_orders(self) -> tuple[OpenOrder, ...]:
        """The account's resting orders."""
        if not any(venue.resting for venue in self.venues):
            return ()
        found = []
        for instrument, venue in zip(self.instruments, self.venues, strict=True):
            for number, order in venue.resting.items():
                queued = venue.book.order(number)
                found.append(
                    OpenOrder(number, instrument, order.side, queued.price, queued.size, queued.size_ahead, order.tag)
                )
        return tuple(found)

    def note_equity(self, event: str) -> None:
        """Sample the net value."""
        self._recorder.equity.append((self.now, event, self.portfolio.net_value))

    def _check(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Instruction):
            raise ValueError(f"a strategy returns orders, targets, cancels and amends, got {instruction!r}")
        if isinstance(instruction, Order | Target) and instruction.instrument not in self._legs:
            known = ", ".join(one.symbol for one in self.instruments)
            raise ValueError(f"{instruction.instrument.symbol} is no leg of this run; legs are {known}")

    def _work(self) -> None:
        """Carry out the queue; answers to fills join its end, so that nothing runs inside something else."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                self._carry_out(*self._queue.popleft())
        finally:
            self._is_busy = False

    def _carry_out(self, number: int, instruction: Instruction) -> None:
        match instruction:
            case Target():
                leg = self._legs[instruction.instrument]
                position = self.portfolio.holdings[leg].position
                missing = instruction.position - position
                if abs(missing) > _NOTHING * max(abs(position), abs(instruction.position)):
                    order = Order(instruction.instrument, "buy" if missing > 0 else "sell", abs(missing))
                    self._send(leg, number, order, instruction.tag, "target")
            case Order():
                self._send(self._legs[instruction.instrument], number, instruction, instruction.tag, "order")
            case Cancel() | Amend():
                self._change(number, instruction)
            case KillSwitch():
                self.stop(instruction.reason)
            case _:
                assert_never(instruction)

    def _send(self, leg: int, number: int, order: Order, tag: str, cause: Cause) -> None:
        refusal = self.guard.refuse_any() or self._off_grid(order) or self._refuse_exposure(leg, order.side, order.size)
        if refusal is not None:
            self._refuse(leg, number, tag, *refusal, order.size)
            return
        venue = self.venues[leg]
        self.book_waiting(leg)
        is_market = order.type == "market"
        taken = venue.market(number, order.side, order.size) if is_market else venue.place(number, order)
        self._book_taken(leg, number, order, tag, cause, taken)

    def book_waiting(self, leg: int) -> None:
        """Bring a leg's book up to date and book what that filled."""
        for number, order, size, paid in self.venues[leg].refresh():
            self._book(leg, number, order.tag, "order", order.side, size, paid, 0.0, "maker")

    def _book_taken(self, leg: int, number: int, order: Order, tag: str, cause: Cause, taken: Taken) -> None:
        for withdrawn in taken.withdrawn:
            self._refuse(leg, withdrawn, "", "self_trade", f"met by own order {number}", None)
        if taken.size:
            self._book(leg, number, tag, cause, order.side, taken.size, taken.paid, taken.beyond, "taker")
        if taken.rest:
            reason = "depth" if order.type == "market" and taken.outcome != "self_trade" else taken.outcome
            self._refuse(leg, number, tag, reason, f"filled {taken.size:.10g}", taken.rest)

    def _change(self, number: int, change: Cancel | Amend) -> None:
        leg = next((i for i, venue in enumerate(self.venues) if change.order_id in venue.resting), None)
        if leg is None:
            self._refuse(None, change.order_id, "", "unknown_order", f"instruction {number}", None)
            return
        venue = self.venues[leg]
        if isinstance(change, Cancel):
            venue.cancel(change.order_id)
            return
        order, now = venue.resting[change.order_id], venue.book.order(change.order_id)
        size, price = change.size or now.size, change.price or now.price
        wanted = Order(order.instrument, order.side, size, price, order.type, order.tag)
        refusal = (
            self.guard.refuse_any()
            or self._off_grid(wanted)
            or self._refuse_exposure(leg, order.side, max(size - now.size, 0.0))
        )
        if refusal is not None:
            self._refuse(leg, change.order_id, order.tag, *refusal, size)
            return
        taken = venue.amend(change.order_id, size=size, price=price)
        if taken.outcome == "accepted":
            taken = taken._replace(rest=0.0)
        self._book_taken(leg, change.order_id, wanted, order.tag, "order", taken)

    def _off_grid(self, order: Order) -> tuple[str, str] | None:
        instrument = order.instrument
        if instrument.lot_size is None and instrument.tick_size is None:
            return None
        try:
            instrument.check_order(order.size / instrument.contract_size, order.price)
        except ValueError as error:
            return "off_grid", str(error)
        return None

    def _refuse_exposure(self, leg: int, side: Side, size: float) -> tuple[str, str] | None:
        """Why an order may not be, were every open order of its side to fill; one that shrinks exposure always may."""
        if not self._checks_exposure:
            return None
        exposures, marks = [], []
        before = 0.0
        for number, (venue, holding) in enumerate(zip(self.venues, self.portfolio.holdings, strict=True)):
            buys, sells = venue.open_sizes()
            if number == leg:
                before = max(abs(holding.position + buys), abs(holding.position - sells))
                buys, sells = (buys + size, sells) if side == "buy" else (buys, sells + size)
            exposures.append(max(abs(holding.position + buys), abs(holding.position - sells)))
            marks.append(holding.mark)
        if exposures[leg] <= before * (1 + _NOTHING):
            return None
        refusal = self.guard.refuse_exposure(leg, exposures, marks)
        if refusal is None and self._margin is not None:
            needed, worth = self._margin.initial(exposures, marks), self.portfolio.net_value
            if needed > worth * (1 + _NOTHING):
                return "initial_margin", f"needs {needed:.10g}, net value is {worth:.10g}"
        return refusal

    def _close_all(self, cause: Cause) -> None:
        for leg, (venue, holding) in enumerate(zip(self.venues, self.portfolio.holdings, strict=True)):
            if not holding.position:
                continue
            side: Side = "sell" if holding.position > 0 else "buy"
            number, self._next = self._next, self._next + 1
            taken = venue.market(number, side, abs(holding.position), forced=True)
            self._book(leg, number, "", cause, side, taken.size, taken.paid, taken.beyond, "taker")

    def _book(
        self,
        leg: int,
        number: int,
        tag: str,
        cause: Cause,
        side: Side,
        size: float,
        paid: float,
        beyond: float,
        liquidity: Liquidity,
    ) -> None:
        instrument, holding = self.instruments[leg], self.portfolio.holdings[leg]
        at_mark = size * holding.mark
        sign = 1.0 if side == "buy" else -1.0
        rate = self._taker if liquidity == "taker" else self._maker
        fee = rate * (paid if self._settings.fee_basis == "fill" else at_mark)
        forced_fee = self._settings.margin.liquidation_fee_rate * at_mark if cause == "liquidation" else 0.0
        realised = self.portfolio.fill(leg, sign * size, paid, fee + forced_fee)
        price, slippage = paid / size, sign * (paid - at_mark)
        self._recorder.fills.append(
            (
                self.now,
                instrument.symbol,
                number,
                tag,
                cause,
                side,
                size,
                price,
                paid,
                beyond,
                slippage,
                fee,
                forced_fee,
                liquidity,
                realised,
                holding.position,
                holding.entry,
            )
        )
        self.note_equity("fill")
        self.on_fill(
            leg,
            Fill(
                utc(self.now),
                instrument,
                number,
                tag,
                cause,
                side,
                size,
                price,
                fee + forced_fee,
                liquidity,
                beyond,
                realised,
                holding.position,
            ),
        )

    def _refuse(self, leg: int | None, number: int, tag: str, reason: str, detail: str, size: float | None) -> None:
        symbol = None if leg is None else self.instruments[leg].symbol
        self._recorder.rejections.append((self.now, symbol, number, tag, reason, detail, size))
