"""The event-driven backtest engine: legs in, a strategy or targets on top, a result out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from archetype_dagster.backtest.engine.book_diff import BookSnapshot
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.leg import LegSpec
from archetype_dagster.backtest.engine.result import BacktestResult
from archetype_dagster.backtest.engine.simulation import Simulation, StrategyDiffs
from archetype_dagster.backtest.engine.strategy import BaseStrategy
from archetype_dagster.backtest.engine.subscriptions import Callback, Kind, Subscriptions
from archetype_dagster.backtest.engine.timeline import Timeline, build_timeline
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.settings import EngineSettings, ExecutionSettings


class BacktestEngine:
    """Runs strategies on one or several instruments that share bar ends and one account.

    Args:
        initial_cash: net value at the start, quote units; by default `execution.initial_capital`, or else the
            settings' `initial_cash`.
        settings: fees, depth, margin, limits.
        execution: delay, and commission and depth policy where the settings leave them open.

    Raises:
        ValueError: initial cash that is not positive and finite.
    """

    def __init__(
        self,
        initial_cash: float | None = None,
        *,
        settings: EngineSettings | None = None,
        execution: ExecutionSettings | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self.execution = execution or ExecutionSettings()
        stated = self.execution.initial_capital if initial_cash is None else initial_cash
        self.initial_cash = float(self.settings.initial_cash if stated is None else stated)
        if not 0 < self.initial_cash < math.inf:
            raise ValueError(f"initial_cash must be positive and finite, got initial_cash={self.initial_cash}")
        self._specs: dict[Instrument, LegSpec] = {}
        self._timeline: Timeline | None = None
        self._simulation: Simulation | None = None
        self._subscriptions = Subscriptions(self.settings.callback_errors)

    @property
    def instruments(self) -> tuple[Instrument, ...]:
        """The legs, in the order they were added."""
        return tuple(self._specs)

    def add(
        self,
        instrument: Instrument,
        bars: pl.DataFrame,
        *,
        snapshots: pl.DataFrame | None = None,
        trades: pl.DataFrame | None = None,
        funding: pl.DataFrame | None = None,
        liquidity_scale: float = 1.0,
        impact_curve: ImpactCurve | None = None,
        max_position: float | None = None,
    ) -> None:
        """Add a leg.

        Args:
            instrument: what it trades; its quote is that of all legs, its profit is paid in it.
            bars: in the bars schema; each bar's book columns are the book at its end. A column `mark_price`
                (quote units), where there is one, is what positions are valued, margined and funded at instead
                of the book's mid.
            snapshots: books between bar ends: `timestamp` and book columns, and `mark_price` where the bars have it.
            trades: `timestamp`, `price`, `size` (base units), `taker_buy`; those of unknown taker count for nothing.
            funding: of a swap; see `funding.funding_schedule`.
            liquidity_scale: notional that it absorbs relative to BTC, which stretches the impact curve.
            impact_curve: of the depth policy `extrapolate`; the shipped one by default.
            max_position: limit of this leg alone, base units.

        Raises:
            ValueError: the leg is there already, has another quote, pays in its base asset, or is spot with
                funding; a number that is not positive and finite.
        """
        if instrument in self._specs:
            raise ValueError(f"{instrument.symbol} is a leg already")
        if instrument.settle == "coin_margin":
            raise ValueError(f"the engine accounts in the quote asset; {instrument.symbol} pays in {instrument.base}")
        other = next((one for one in self._specs if one.quote != instrument.quote), None)
        if other is not None:
            raise ValueError(f"legs must share one quote asset, got {other.symbol} and {instrument.symbol}")
        if funding is not None and instrument.kind != "swap":
            raise ValueError(f"only swaps have funding, got funding for {instrument.symbol}")
        if max_position is not None and not 0 < max_position < math.inf:
            raise ValueError(f"max_position must be positive and finite, got max_position={max_position}")
        curve = (impact_curve or ImpactCurve.default()).scaled(liquidity_scale)
        self._specs[instrument] = LegSpec(instrument, bars, snapshots, trades, funding, curve, max_position)
        self._timeline = None

    @property
    def timeline(self) -> Timeline:
        """The legs on their shared bar ends, checked at the first use.

        Raises:
            ValueError: no leg.
            MarketDataError: data that break a rule, or legs whose bar ends differ.
        """
        if self._timeline is None:
            if not self._specs:
                raise ValueError("the engine has no leg; add one first")
            self._timeline = build_timeline(list(self._specs.values()), unequal_bars=self.settings.unequal_bars)
        return self._timeline

    def subscribe(self, callback: Callback, kind: Kind = "per_bar", *, name: str | None = None) -> int:
        """Have a callback called with every `L3BookDiff`; gives the number for `unsubscribe`.

        `per_bar` tells of each leg's book at each bar's end, after its orders; `per_fill` after each fill of the
        account; `both` at both moments. Each diff holds what changed since the one before of the same subscriber,
        so nothing comes twice. The first starts from the book as it is now: before a run, an empty one.

        Args:
            callback: takes the diff.
            kind: when.
            name: for errors; the callback's own by default.

        Raises:
            ValueError: an unknown kind or a callback that can't be called.
        """
        number = self._subscriptions.add(callback, kind, name)
        if self._simulation is not None:
            self._subscriptions.join(number, self._simulation.books)
        return number

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription, at any time; `ValueError` where there is none of that number."""
        self._subscriptions.remove(subscription)

    def snapshot(self, instrument: Instrument | None = None) -> BookSnapshot:
        """The book of a leg, the first by default, as the run left it.

        Raises:
            ValueError: no run has begun, or no such leg.
        """
        if self._simulation is None:
            raise ValueError("no run has begun")
        wanted, books = instrument or self.instruments[0], dict(self._simulation.books)
        if wanted not in books:
            raise ValueError(f"{wanted.symbol} is no leg of this run")
        return books[wanted].snapshot()

    def kill(self, reason: str = "kill switch") -> None:
        """Throw the kill switch of the run, from a callback too; `ValueError` where none has begun."""
        if self._simulation is None:
            raise ValueError("no run has begun")
        self._simulation.desk.kill(reason)

    def start(
        self,
        *,
        first: int = 0,
        last: int | None = None,
        strategy: BaseStrategy | None = None,
    ) -> Simulation:
        """Begin a run to be walked with `Simulation.step`; data are prepared once for any number of runs.

        Args:
            first: bar at which it starts; earlier ones are history.
            last: bar at which it ends; the last one by default.
            strategy: told of fills.

        Raises:
            ValueError: no such bars.
        """
        end = len(self.timeline) - 1 if last is None else last
        if not 0 <= first <= end < len(self.timeline):
            raise ValueError(f"first and last must be bars in 0..{len(self.timeline) - 1}, got {first} and {end}")
        self._simulation = Simulation(
            self.timeline,
            self.settings,
            self.execution,
            cash=self.initial_cash,
            subscriptions=self._subscriptions,
            strategy=strategy,
            first=first,
            last=end,
        )
        return self._simulation

    def run(self, strategy: BaseStrategy) -> BacktestResult:
        """Drive a strategy over all bars, or up to ruin.

        Raises:
            SubscriberError: a subscriber raised and the policy is `stop`.
            ValueError: the strategy returned something else than instructions for the legs.
        """
        diffs = StrategyDiffs(strategy)
        number = None
        if type(strategy).on_book_diff is not BaseStrategy.on_book_diff:
            number = self._subscriptions.add(diffs, "per_bar", type(strategy).__qualname__)
        try:
            simulation = diffs.simulation = self.start(strategy=strategy)
            strategy.on_start(simulation.context())
            while simulation.advance():
                context = simulation.context()
                decided = strategy.on_bar(context.newest[0], context)
                if decided:
                    simulation.act(decided)
                simulation.close_bar()
            strategy.on_stop(simulation.context())
        finally:
            if number is not None:
                self._subscriptions.remove(number)
        return simulation.result()

    def run_targets(self, targets: ArrayLike | Mapping[Instrument, ArrayLike]) -> BacktestResult:
        """Hold a given position of every leg from each bar's end on.

        Args:
            targets: base units, signed: (T,) for one leg, (T, L) in the legs' order, or (T,) for each leg.

        Raises:
            ValueError: another shape or legs, or a target that is not finite.
        """
        if isinstance(targets, Mapping):
            if set(targets) != set(self.instruments):
                known = ", ".join(one.symbol for one in self.instruments)
                raise ValueError(f"targets must be given for the legs {known}")
            columns = [np.asarray(targets[one], dtype=np.float64) for one in self.instruments]
            wanted = np.stack(columns, axis=-1) if len({column.shape for column in columns}) == 1 else np.empty(0)
        else:
            wanted = np.asarray(targets, dtype=np.float64)
            wanted = wanted[:, None] if wanted.ndim == 1 else wanted
        shape = (len(self.timeline), len(self.instruments))
        if wanted.shape != shape:
            raise ValueError(f"targets must be one a bar and leg, {shape}, got shape {wanted.shape}")
        if not np.isfinite(wanted).all():
            row = int(np.isfinite(wanted).all(axis=1).argmin())
            raise ValueError(f"targets must be finite, got {wanted[row].tolist()} at bar {row}")
        simulation = self.start()
        for row in wanted.tolist():
            if not simulation.advance():
                break
            simulation.aim(row)
            simulation.close_bar()
        return simulation.result()
