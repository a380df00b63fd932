"""Any recorded source that `market.sources` reads as a feed: a vendor's files, candles, the embedded market."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.sources import bars_for
from archetype_dagster.paper_trading.feeds import FeedBar
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
        self._rows: Iterator[dict[str, object]] = bars_for(settings, pair).drop("segment").iter_rows(named=True)
        self._after: datetime | None = None

    @property
    def ended(self) -> bool:
        """See `MarketFeed.ended`."""
        return True

    def resume(self, cursor: str) -> None:
        """See `MarketFeed.resume`; `MarketDataError` for a cursor of another feed."""
        try:
            self._after = datetime.fromisoformat(cursor)
        except ValueError:
            raise MarketDataError(f"a cursor of a source is a bar's end in ISO 8601, got {cursor!r}") from None

    def poll(self) -> Sequence[FeedBar]:
        """See `MarketFeed.poll`."""
        ends = ((row["timestamp"], row) for row in self._rows)
        new = (
            FeedBar(row, end.isoformat())
            for end, row in ends
            if isinstance(end, datetime) and (self._after is None or end > self._after)
        )
        return list(islice(new, _AT_ONCE))
