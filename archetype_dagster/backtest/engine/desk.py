"""Where orders go: through the gate to the venue, and from there into the books."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, assert_never

from archetype_dagster.backtest.engine.book_records import Side
from archetype_dagster.backtest.engine.bookkeeper import Bookkeeper
from archetype_dagster.backtest.engine.executed import Made, Taken
from archetype_dagster.backtest.engine.gate import OrderGate
from archetype_dagster.backtest.engine.leg import Leg
from archetype_dagster.backtest.engine.margin import CrossMargin, MarginRates
from archetype_dagster.backtest.engine.orders import (
    Amend,
    Cancel,
    Cause,
    Instruction,
    KillSwitch,
    OpenOrder,
    Order,
    Target,
)
from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.backtest.engine.recorder import Recorder
from archetype_dagster.backtest.engine.risk import RiskGuard
from archetype_dagster.backtest.engine.venue import Venue
from archetype_dagster.settings import EngineSettings, ExecutionSettings

_NOTHING: Final = 1e-12


class OrderDesk:
    """One account's orders during a run.

    Args:
        legs: what is traded.
        settings: fees, depth, margin and limits.
        execution: what the settings leave to it: commission and depth policy.
        cash: net value at the start, quote units.
        recorder: notes everything.

    Attributes:
        instruments: of the legs.
        portfolio: cash and positions.
        venues: one a leg.
        guard: limits, and whether trading has ended.
        books: where fills, funding and refusals are noted; keeps the time.
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
        self.instruments = tuple(leg.instrument for leg in legs)
        swaps = [instrument.kind == "swap" for instrument in self.instruments]
        self.portfolio = Portfolio(cash, swaps, steps=[leg.lot_size for leg in legs])
        policy = settings.depth_policy or execution.depth_policy
        self.venues = tuple(
            Venue(leg.lot_size, leg.impact_curve, depth_policy=policy, self_trade=settings.self_trade) for leg in legs
        )
        self.guard = RiskGuard(settings.risk, [leg.max_position for leg in legs], initial_value=cash)
        self.books = Bookkeeper(self.instruments, self.portfolio, recorder, settings, execution)
        rates = [MarginRates.of(settings.margin, is_swap=one.kind == "swap") for one in self.instruments]
        self._margin = CrossMargin(rates) if settings.margin.mode == "cross" else None
        self._gate = OrderGate(self.venues, self.portfolio, self.guard, self._margin)
        self._closes_on_stop = settings.risk.close_on_stop
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
        if isinstance(instructions, Instruction):
            raise ValueError(f"instructions come in a sequence, got a single {type(instructions).__name__}")
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
            self._queue.append(self._pending.popleft()[1:])
        self._work()

    def book_made(self, made: Iterable[tuple[int, Made]]) -> None:
        """Book what resting orders got at one moment, each with the number of its leg."""
        with self._undisturbed():
            for leg, (number, order, size, paid) in made:
                self.books.fill(leg, number, order, size, paid, liquidity="maker")

    def refresh(self, leg: int) -> None:
        """Bring a leg's book up to date."""
        made = self.venues[leg].refresh()
        if made:
            self.book_made((leg, one) for one in made)

    def look_after(self) -> None:
        """Close everything if the margin does not hold, stop if the drawdown is too deep."""
        if self._margin is not None and self._margin.is_breached(self.portfolio):
            with self._undisturbed():
                self.withdraw_all("liquidation")
                self._close_all("liquidation")
                self.books.note_equity("liquidation")
        if self.guard.falls_too_far(self.portfolio.net_value):
            self.stop("max_drawdown")

    def kill(self, reason: str) -> None:
        """Stop now, or as soon as what is in progress is booked: its fills count as positions to close."""
        if self._is_busy:
            self._queue.appendleft((self._next, KillSwitch(reason)))
            self._next += 1
        else:
            self.stop(reason)

    def stop(self, reason: str) -> None:
        """End trading: withdraw all orders, and close all positions where the settings say so."""
        if self.guard.stop(reason):
            with self._undisturbed():
                self.withdraw_all("stopped")
                if self._closes_on_stop:
                    self._close_all("stop")

    def withdraw_all(self, reason: str) -> None:
        """Withdraw every resting and every pending order, each with this reason."""
        for leg, venue in enumerate(self.venues):
            for number, order in list(venue.resting.items()):
                self.books.refuse(leg, number, order.tag, reason, "withdrawn", venue.cancel(number))
        self.withdraw_pending(reason)

    def withdraw_pending(self, reason: str) -> None:
        """Withdraw what has not been executed yet because of the delay; a kill switch is never withdrawn."""
        waiting, self._pending = self._pending, deque()
        for due, number, instruction in waiting:
            if isinstance(instruction, KillSwitch):
                self._pending.append((due, number, instruction))
            elif isinstance(instruction, Order | Target):
                size = instruction.size if isinstance(instruction, Order) else None
                leg = self._legs[instruction.instrument]
                self.books.refuse(leg, number, instruction.tag, reason, "not yet executed", size)

    def open_orders(self) -> tuple[OpenOrder, ...]:
        """The account's resting orders."""
        found = []
        for instrument, venue in zip(self.instruments, self.venues, strict=True):
            for number, order in venue.resting.items():
                queued = venue.book.order(number)
                place = (queued.price, queued.size, queued.size_ahead)
                found.append(OpenOrder(number, instrument, order.side, *place, order.tag))
        return tuple(found)

    def _check(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Instruction):
            raise ValueError(f"a strategy returns orders, targets, cancels and amends, got {instruction!r}")
        if isinstance(instruction, Order | Target) and instruction.instrument not in self._legs:
            raise ValueError(f"{instruction.instrument.symbol} is no leg of this run")

    def _work(self) -> None:
        """Carry out the queue; answers to fills join its end, so that nothing runs inside something else."""
        if self._queue and not self._is_busy:
            with self._undisturbed():
                pass

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Let what is in progress end before the queue is carried out."""
        if self._is_busy:
            yield
            return
        self._is_busy = True
        try:
            yield
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
                least = max(_NOTHING * max(abs(position), abs(instruction.position)), self.venues[leg].smallest)
                if abs(missing) > least:
                    side: Side = "buy" if missing > 0 else "sell"
                    order = Order(instruction.instrument, side, abs(missing), tag=instruction.tag)
                    self._send(leg, number, order, "target")
            case Order():
                self._send(self._legs[instruction.instrument], number, instruction, "order")
            case Cancel() | Amend():
                self._change(number, instruction)
            case KillSwitch():
                self.stop(instruction.reason)
            case _:
                assert_never(instruction)

    def _send(self, leg: int, number: int, order: Order, cause: Cause) -> None:
        refusal = self._gate.refusal(leg, order, order.size)
        if refusal is not None:
            self.books.refuse(leg, number, order.tag, *refusal, order.size)
            return
        self.refresh(leg)
        venue = self.venues[leg]
        is_market = order.type == "market"
        taken = venue.market(number, order.side, order.size) if is_market else venue.place(number, order)
        self._book_taken(leg, number, order, taken, cause)

    def _change(self, number: int, change: Cancel | Amend) -> None:
        leg = next((i for i, venue in enumerate(self.venues) if change.order_id in venue.resting), None)
        if leg is None:
            self.books.refuse(None, change.order_id, "", "unknown_order", f"instruction {number}", None)
            return
        venue = self.venues[leg]
        if isinstance(change, Cancel):
            venue.cancel(change.order_id)
            return
        old, queued = venue.resting[change.order_id], venue.book.order(change.order_id)
        size, price = change.size or queued.size, change.price or queued.price
        order = Order(old.instrument, old.side, size, price, old.type, old.tag)
        refusal = self._gate.refusal(leg, order, max(size - queued.size, 0.0))
        if refusal is not None:
            self.books.refuse(leg, change.order_id, order.tag, *refusal, size)
            return
        self._book_taken(leg, change.order_id, order, venue.amend(change.order_id, size=size, price=price), "order")

    def _book_taken(self, leg: int, number: int, order: Order, taken: Taken, cause: Cause) -> None:
        for withdrawn in taken.withdrawn:
            self.books.refuse(leg, withdrawn, "", "self_trade", f"met by own order {number}", None)
        if taken.size:
            self.books.fill(leg, number, order, taken.size, taken.paid, cause=cause, beyond=taken.beyond)
        if taken.made:
            self.book_made((leg, one) for one in taken.made)
        if taken.outcome != "accepted":
            reason = "depth" if order.type == "market" and taken.outcome != "self_trade" else taken.outcome
            self.books.refuse(leg, number, order.tag, reason, f"filled {taken.size:.10g}", taken.rest)

    def _close_all(self, cause: Cause) -> None:
        for leg, (venue, holding) in enumerate(zip(self.venues, self.portfolio.holdings, strict=True)):
            if not holding.position:
                continue
            order = Order(self.instruments[leg], "sell" if holding.position > 0 else "buy", abs(holding.position))
            number, self._next = self._next, self._next + 1
            taken = venue.market(number, order.side, order.size, forced=True)
            self.books.fill(leg, number, order, taken.size, taken.paid, cause=cause, beyond=taken.beyond)
