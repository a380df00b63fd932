"""The event-driven engine: instruments, an order-level book, accounts with margin, strategies and what they see."""

from archetype_dagster.backtest.engine.book_diff import BookSnapshot, L3BookDiff, apply_diff
from archetype_dagster.backtest.engine.context import Bar, BarContext, BookView
from archetype_dagster.backtest.engine.engine import BacktestEngine
from archetype_dagster.backtest.engine.instruments import Instrument, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine.order_book import OrderBook
from archetype_dagster.backtest.engine.orders import Amend, Cancel, Fill, KillSwitch, OpenOrder, Order, Target
from archetype_dagster.backtest.engine.result import BacktestResult
from archetype_dagster.backtest.engine.simulation import Simulation
from archetype_dagster.backtest.engine.strategy import BaseStrategy
from archetype_dagster.backtest.engine.subscriptions import SubscriberError

__all__ = [
    "Amend",
    "BacktestEngine",
    "BacktestResult",
    "Bar",
    "BarContext",
    "BaseStrategy",
    "BookSnapshot",
    "BookView",
    "Cancel",
    "Fill",
    "Instrument",
    "KillSwitch",
    "L3BookDiff",
    "OpenOrder",
    "Order",
    "OrderBook",
    "Simulation",
    "SubscriberError",
    "Target",
    "apply_diff",
    "spot_instrument",
    "swap_instrument",
]
