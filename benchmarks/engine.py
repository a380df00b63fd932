"""Bars per second of the event-driven engine: a strategy that only looks, a series of targets and a market maker.

Run with `python benchmarks/engine.py`. The targets' net value must equal that of the vectorised replay, which is
timed beside it, or the run stops.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from _machine import machine_line

from archetype_dagster.backtest import BacktestEngine, BaseStrategy, Order, replay, spot_instrument
from archetype_dagster.backtest.engine import Cancel
from archetype_dagster.market.sources import bars_for
from archetype_dagster.settings import ExecutionSettings, load_settings

SPOT = spot_instrument("BTC", "USDT")
CAPITAL = 1e9


class Idle(BaseStrategy):
    """Does nothing."""

    def on_bar(self, bar, ctx):
        return None


class Reader(BaseStrategy):
    """Looks at an hour of closes and at the touch."""

    def on_bar(self, bar, ctx):
        self.seen = ctx.values("close", 6).mean(), ctx.book.best_bid


class Maker(BaseStrategy):
    """Moves an order on each side to the touch at every bar."""

    def on_bar(self, bar, ctx):
        quotes = ((side, price) for side, price in (("buy", ctx.book.best_bid), ("sell", ctx.book.best_ask)) if price)
        placed = [Order(SPOT, side, 0.01, price, "post_only") for side, price in quotes]
        return [*(Cancel(order.order_id) for order in ctx.open_orders), *placed]


def report(name: str, bars: int, repeats: int, run: Callable[[], object]) -> None:
    """Print the bars per second of the fastest of `repeats` runs."""
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    print(f"{name:44s} {bars:8,d} bars  {min(seconds):8.3f} s  {bars / min(seconds):12,.0f} bars/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    settings = load_settings("smoke", {"market.book_levels": 25})
    pair = settings.pair("BTC")
    bars = bars_for(settings, "BTC")[: arguments.bars]
    execution = ExecutionSettings()
    actions = np.random.default_rng(0).integers(0, 3, bars.height).astype(np.int8)
    targets = pair.max_position * (actions - 1.0)
    held = np.repeat(targets[::12], 12)[: bars.height]

    def made() -> BacktestEngine:
        engine = BacktestEngine(CAPITAL, execution=execution)
        engine.add(SPOT, bars, liquidity_scale=pair.liquidity_scale)
        return engine

    engine, told = made(), made()
    told.subscribe(lambda change: None)
    ledger = replay(actions, bars, pair=pair, initial_capital=CAPITAL, settings=execution)
    result = engine.run_targets(targets)
    np.testing.assert_allclose(result.bars["net_value"], ledger.net_value, rtol=1e-9)
    told.run(Idle())
    print(machine_line("numpy", "numba", "polars"))
    count, repeats = bars.height, arguments.repeats
    report("checking bars and books", count, repeats, lambda: made().timeline)
    report("strategy that does nothing", count, repeats, lambda: engine.run(Idle()))
    report("strategy that reads history and book", count, repeats, lambda: engine.run(Reader()))
    report("strategy that moves two orders a bar", count, repeats, lambda: engine.run(Maker()))
    report("one subscriber, a diff a bar", count, repeats, lambda: told.run(Idle()))
    report("targets, a trade in two of three bars", count, repeats, lambda: engine.run_targets(targets))
    report("targets, a trade in twelve bars", count, repeats, lambda: engine.run_targets(held))
    report(
        "the same as a vectorised replay",
        count,
        repeats,
        lambda: replay(actions, bars, pair=pair, initial_capital=CAPITAL, settings=execution),
    )


if __name__ == "__main__":
    main()
