"""Paper trading: a bundle follows bars as they come, fills against their books, and its journal survives kills."""

from archetype_dagster.paper_trading.capture_feed import CaptureFeed
from archetype_dagster.paper_trading.feeds import FeedBar, MarketFeed
from archetype_dagster.paper_trading.file_feed import FileFeed
from archetype_dagster.paper_trading.journal import Journal
from archetype_dagster.paper_trading.limits import Stop
from archetype_dagster.paper_trading.message_bars import MessageBars
from archetype_dagster.paper_trading.policy import BarDecision, BarPolicy
from archetype_dagster.paper_trading.session import Clock, PaperSession
from archetype_dagster.paper_trading.trader import PaperTrader

__all__ = [
    "BarDecision",
    "BarPolicy",
    "CaptureFeed",
    "Clock",
    "FeedBar",
    "FileFeed",
    "Journal",
    "MarketFeed",
    "MessageBars",
    "PaperSession",
    "PaperTrader",
    "Stop",
]
