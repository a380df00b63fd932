"""Bars in order of their ends, which are their cursors: left out up to the one that a journal ends with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from archetype_dagster.errors import MarketDataError
from archetype_dagster.paper_trading.feeds import FeedBar


class TimedBars:
    """The bars of a recorded feed.

    Args:
        rows: by column name of the bars schema, oldest first; read as they are asked for.
        source: what messages name.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], source: str | Path | None) -> None:
        self._source = source
        self._after: datetime | None = None
        self._bars = self._later(rows)

    def resume(self, cursor: str, end: datetime | None) -> None:
        """See `MarketFeed.resume`."""
        try:
            named = datetime.fromisoformat(cursor)
        except ValueError:
            named = None
        if named is None or named.tzinfo is None or (end is not None and named != end):
            rule = f"a cursor of this feed is its bar's end in ISO 8601 with its zone, the journal has {cursor!r}"
            raise MarketDataError(f"{rule}; the journal is of another feed", file=self._source)
        self._after = named

    def take(self, count: int) -> list[FeedBar]:
        """The next bars, fewer at the end.

        Raises:
            MarketDataError: the journal's last bar is not among those before.
        """
        return list(islice(self._bars, count))

    def _later(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[FeedBar]:
        met = self._after is None
        for row in rows:
            end = row["timestamp"]
            if self._after is not None and end <= self._after:
                met = met or end == self._after
                continue
            if not met:
                break
            yield FeedBar(row, end.isoformat())
        if not met and self._after is not None:
            rule = f"no bar ends at {self._after.isoformat()}, after which the journal goes on"
            raise MarketDataError(f"{rule}; another feed needs a journal of its own", file=self._source)
