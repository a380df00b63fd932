"""Any recorded source that `market.sources` reads as a feed: a vendor's files, candles, the embedded market."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from archetype_dagster.market.sources import bars_for
from archetype_dagster.paper_trading.feeds import FeedBar
from archetype_dagster.paper_trading.timed_bars import TimedBars
from archetype_dagster.settings import Settings

_AT_ONCE: Final = 256


class SourceFeed:
    """Bars of the source that `settings.market` names, built and checked as for a training, one after the other.

    Args:
        settings: the run's settings.
        pair: traded pair.

    Raises:
        MarketDataError: see `market.load_bars`.
    """

    def __init__(self, settings: Settings, pair: str) -> None:
        rows = bars_for(settings, pair).drop("segment").iter_rows(named=True)
        self._bars = TimedBars(rows, settings.market.path)

    @property
    def ended(self) -> bool:
        """See `MarketFeed.ended`."""
        return True

    def resume(self, cursor: str, end: datetime | None) -> None:
        """See `MarketFeed.resume`."""
        self._bars.resume(cursor, end)

    def poll(self) -> Sequence[FeedBar]:
        """See `MarketFeed.poll`."""
        return self._bars.take(_AT_ONCE)
