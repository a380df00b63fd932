"""A recorded websocket as a feed: its messages are played one by one into bars, as a live connector would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.files import find_files
from archetype_dagster.paper_trading.feeds import FeedBar
from archetype_dagster.paper_trading.message_bars import MessageBars
from archetype_dagster.paper_trading.timed_bars import TimedBars


class CaptureFeed:
    """Lines of the receiver's clock in nanoseconds, a space and a message, from files in order of their names.

    Args:
        path: a capture, plain, .gz or .zip, a folder or a glob of such files.
        bars: what makes bars of the messages.

    Attributes:
        messages: messages played so far.

    Raises:
        MarketDataError: nothing is there.
    """

    def __init__(self, path: Path, bars: MessageBars) -> None:
        self._files = find_files(path)
        self._builder = bars
        self._bars = TimedBars(self._play(), path)
        self.messages = 0

    @property
    def ended(self) -> bool:
        """See `MarketFeed.ended`."""
        return True

    def resume(self, cursor: str, end: datetime | None) -> None:
        """See `MarketFeed.resume`; the messages are played again from the first, for the book's sake."""
        self._bars.resume(cursor, end)

    def poll(self) -> Sequence[FeedBar]:
        """See `MarketFeed.poll`: one bar at a time, as soon as a message shows that it is over."""
        return self._bars.take(1)

    def _play(self) -> Iterator[dict[str, Any]]:
        for file in self._files:
            lines = (line for block in file.blocks() for line in block.splitlines())
            for row, line in enumerate(lines):
                yield from self._closed(line, file.label, row)

    def _closed(self, line: bytes, label: str, row: int) -> list[dict[str, Any]]:
        """The bars that a line's message shows to be over."""
        clock, _, text = line.partition(b" ")
        try:
            received, message = int(clock) // 1000, json.loads(text)
            content = message.get("data", message)
        except (ValueError, AttributeError) as error:
            rule = f"a line must be nanoseconds, a space and a JSON object ({error})"
            raise MarketDataError(rule, file=label, row=row) from error
        self.messages += 1
        try:
            return self._builder.push(received, content)
        except MarketDataError as error:
            raise MarketDataError(error.rule, file=label, row=row) from error
