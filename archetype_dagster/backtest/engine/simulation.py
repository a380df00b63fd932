"""One run, event by event.

Trades, snapshots and settlements since the last bar end come first, in their order. At the bar's end, in this
order: the marks move; funding settles on the position held into this moment; the new books fill resting orders
that they reach; margin and drawdown are looked at; orders that are due after their delay arrive; the strategy
decides, and with no delay its orders execute on these books; the bar is recorded. Between bar ends, margin and
drawdown are looked at after every snapshot and settlement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from weakref import WeakMethod

from archetype_dagster.backtest.engine.book_diff import L3BookDiff
from archetype_dagster.backtest.engine.bookkeeper import utc
from archetype_dagster.backtest.engine.context import Bar, BarContext, BookView, History
from archetype_dagster.backtest.engine.desk import OrderDesk
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.leg import ShownBook
from archetype_dagster.backtest.engine.order_book import OrderBook
from archetype_dagster.backtest.engine.orders import Fill, Instruction, Target
from archetype_dagster.backtest.engine.recorder import Recorder
from archetype_dagster.backtest.engine.result import BacktestResult
from archetype_dagster.backtest.engine.strategy import BaseStrategy
from archetype_dagster.backtest.engine.subscriptions import Subscriptions
from archetype_dagster.backtest.engine.timeline import PRINT, SNAPSHOT, Timeline
from archetype_dagster.settings import EngineSettings, ExecutionSettings


class Simulation:
    """A run that is walked bar by bar: by `BacktestEngine.run`, or by whoever wants to act in between.

    Args:
        timeline: what happens.
        settings: of the engine.
        execution: delay, and what the settings leave to it.
        cash: net value at the start, quote units.
        subscriptions: who is told of book changes.
        strategy: told of fills; None where the caller acts itself.
        first: bar at which the run starts; those before it are history.
        last: bar at which it ends.
    """

    def __init__(
        self,
        timeline: Timeline,
        settings: EngineSettings,
        execution: ExecutionSettings,
        *,
        cash: float,
        subscriptions: Subscriptions,
        strategy: BaseStrategy | None,
        first: int,
        last: int,
    ) -> None:
        self._timeline, self._subscriptions, self._strategy = timeline, subscriptions, strategy
        self._delay = execution.execution_delay_bars
        self._first, self._last, self._row = first, last, first - 1
        self._recorder = Recorder([leg.instrument for leg in timeline.legs])
        self.desk = OrderDesk(timeline.legs, settings, execution, cash=cash, recorder=self._recorder)
        self.desk.books.on_fill = _weakly(self._after_fill)
        self._cash, self._is_open, self._ruined = cash, False, False
        self._instruments = self.desk.instruments
        self._histories = tuple(History(leg.columns, last + 1) for leg in timeline.legs)
        views = (BookView(venue) for venue in self.desk.venues)
        self._views = MappingProxyType(dict(zip(self._instruments, views, strict=True)))
        self._known = MappingProxyType(dict(zip(self._instruments, self._histories, strict=True)))
        self._bars: tuple[Bar, ...] = ()
        for history, leg in zip(self._histories, timeline.legs, strict=True):
            history.reveal(timeline.times[:first], leg.rows[:first])
        self._answers = strategy is not None and type(strategy).on_fill is not BaseStrategy.on_fill
        subscriptions.begin(self.books)

    @property
    def books(self) -> list[tuple[Instrument, OrderBook]]:
        """The live book of each leg."""
        return list(zip(self._instruments, (venue.book for venue in self.desk.venues), strict=True))

    @property
    def is_over(self) -> bool:
        """No bar is left, or the account is ruined."""
        return self._ruined or (self._row >= self._last and not self._is_open)

    def step(self, instructions: Iterable[Instruction] = ()) -> BarContext | None:
        """Act at the open bar's end and go on to the next; None once there is none.

        The first call opens the first bar, so nothing can be done in it.

        Raises:
            ValueError: instructions before the first bar, or that the desk refuses to read.
        """
        if self._is_open:
            self.act(instructions)
            self.close_bar()
        elif tuple(instructions):
            raise ValueError("no bar is open yet; call step() without instructions first")
        return self.context() if self.advance() else None

    def advance(self) -> bool:
        """Let time pass up to the next bar's end; False where there is none."""
        if self._ruined or self._row >= self._last:
            return False
        self._row += 1
        row, desk = self._row, self.desk
        now, is_after_gap, begin, end = self._timeline.clock[row]
        desk.guard.begin_bar()
        if row > self._first:
            if is_after_gap:
                desk.books.now = now
                desk.withdraw_all("gap")
            if begin < end:
                for (time, kind), events in groupby(self._timeline.events[begin:end].tolist(), itemgetter(0, 1)):
                    self._happen(time, kind, [(leg, index) for _, _, leg, index in events])
        desk.books.now = now
        self._end_bar(row)
        self._is_open = True
        return True

    def act(self, instructions: Iterable[Instruction]) -> list[int]:
        """Give instructions at the open bar's end; their numbers."""
        return self.desk.submit(instructions, due=self._row + self._delay if self._delay else None)

    def aim(self, positions: Sequence[float]) -> None:
        """Want a position of each leg at the open bar's end, base units; what is held already needs no order."""
        held = self.desk.portfolio.holdings
        self.act(
            [
                Target(instrument, wanted)
                for instrument, wanted, holding in zip(self._instruments, positions, held, strict=True)
                # What is on its way may change the position until a delayed target arrives.
                if self._delay or wanted != holding.position
            ]
        )

    def close_bar(self) -> None:
        """Record the bar after its orders and tell those who listen at bar ends; ruin ends the run here."""
        portfolio, net_value = self.desk.portfolio, self.desk.portfolio.net_value
        self._recorder.bar(self.desk.books.now, portfolio, net_value)
        self._is_open = False
        self._ruined = net_value <= 0
        if len(self._subscriptions):
            now = utc(self.desk.books.now)
            for leg, (instrument, book) in enumerate(self.books):
                self.desk.refresh(leg)
                self._subscriptions.tell("per_bar", instrument, book, now)

    def context(self) -> BarContext:
        """The account and the market now."""
        desk = self.desk
        return BarContext(
            time=utc(desk.books.now) if self._row >= self._first else None,
            bar_number=self._row - self._first,
            cash=desk.portfolio.cash,
            net_value=desk.portfolio.net_value,
            instruments=self._instruments,
            states=tuple([(one.position, one.entry, one.mark) for one in desk.portfolio.holdings]),
            newest=self._bars,
            open_orders=desk.open_orders(),
            stopped=desk.guard.stopped,
            books=self._views,
            histories=self._known,
            known_bars=self._histories[0].count,
            execution_delay_bars=self._delay,
        )

    def result(self) -> BacktestResult:
        """What has happened up to the last closed bar; orders that never became due are withdrawn."""
        if self.is_over:
            self.desk.withdraw_pending("end_of_data")
        return self._recorder.result(
            self._subscriptions.errors,
            initial_cash=self._cash,
            stopped="ruin" if self._ruined else self.desk.guard.stopped,
            ruined=self._ruined,
        )

    def _happen(self, time: int, kind: int, where: Sequence[tuple[int, int]]) -> None:
        """All events of one kind at one time, each (leg, index): no leg is looked at before all have moved."""
        desk, legs = self.desk, self._timeline.legs
        desk.books.now = time
        if kind == PRINT:
            for number, index in where:
                prints = legs[number].prints
                price, size = float(prints.prices[index]), float(prints.sizes[index])
                made = desk.venues[number].trade(price, size, taker_buys=bool(prints.taker_buys[index]))
                desk.book_made((number, one) for one in made)
            return
        if kind == SNAPSHOT:
            for number, index in where:
                desk.portfolio.revalue(number, float(legs[number].finer.marks[index]))
            self._show((number, legs[number].finer.shown(index)) for number, index in where)
        else:
            for number, index in where:
                self._settle(number, index)
        desk.look_after()
        if kind == SNAPSHOT:
            desk.books.note_equity("snapshot")

    def _show(self, shown: Iterable[tuple[int, ShownBook]]) -> None:
        """Show every leg its new book, then book what that filled: an answer to a fill meets no leg's old book."""
        made = [(leg, one) for leg, book in shown for one in self.desk.venues[leg].show(book)]
        if made:
            self.desk.book_made(made)

    def _settle(self, number: int, index: int) -> None:
        schedule = self._timeline.legs[number].funding
        own = float(schedule.marks[index])
        mark = own if own == own else self.desk.portfolio.holdings[number].mark
        self.desk.books.funding(number, float(schedule.rates[index]), mark)

    def _end_bar(self, row: int) -> None:
        timeline, desk = self._timeline, self.desk
        now, bars = utc(desk.books.now), []
        for number, leg in enumerate(timeline.legs):
            mark = float(leg.bars.marks[row])
            desk.portfolio.revalue(number, mark)
            self._histories[number].reveal(timeline.times[row : row + 1], leg.rows[row : row + 1])
            bars.append(Bar._make((leg.instrument, now, *leg.prices[row].tolist(), mark)))
        self._bars = tuple(bars)
        for number, index in timeline.settlements.get(row, ()) if row > self._first else ():
            self._settle(number, index)
        self._show((number, leg.bars.shown(row)) for number, leg in enumerate(timeline.legs))
        desk.look_after()
        desk.arrive(row)

    def _after_fill(self, number: int, fill: Fill) -> None:
        if len(self._subscriptions):
            self._subscriptions.tell("per_fill", fill.instrument, self.desk.venues[number].book, fill.timestamp)
        if self._answers and self._strategy is not None:
            answers = self._strategy.on_fill(fill, self.context())
            if answers:
                self.act(answers)


def _weakly(method: Callable[[int, Fill], None]) -> Callable[[int, Fill], None]:
    """Calls the method while its owner lives: a cycle would keep the bars of runs that are over in memory."""
    reference = WeakMethod(method)

    def call(number: int, fill: Fill) -> None:
        listener = reference()
        if listener is not None:
            listener(number, fill)

    return call


class StrategyDiffs:
    """Hands the diffs of each bar's end to a strategy, with the context of that moment."""

    def __init__(self, strategy: BaseStrategy) -> None:
        self.strategy = strategy
        self.simulation: Simulation | None = None

    def __call__(self, diff: L3BookDiff) -> None:
        """Tell the strategy."""
        if self.simulation is not None:
            self.strategy.on_book_diff(diff, self.simulation.context())
