"""The seam for exchange connectors: what a source of bars must do so that a paper trader can follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class FeedBar:
    """One bar as a feed delivers it.

    Attributes:
        row: by column name of the bars schema: `timestamp` (bar end, aware datetime), prices in quote units,
            volumes and sizes in base units, None where a level is empty; further names are ignored.
        cursor: where the bar stands in the feed; the same bar has the same cursor in every process.
    """

    row: Mapping[str, Any]
    cursor: str


class MarketFeed(Protocol):
    """Bars in order of their arrival, faults and all; what becomes of those is the trader's business.

    A restarted process makes the feed anew, tells it every cursor that is in the journal, and polls: no
    bar of the journal may come again and none may be left out.
    """

    @property
    def ended(self) -> bool:
        """True where no bar will ever come again once `poll` has returned none."""

    def resume(self, cursor: str, end: datetime | None) -> None:
        """Take a bar of the journal as delivered; called before the first poll, in order of delivery.

        Args:
            cursor: the bar's cursor.
            end: when it ended, UTC; None where it told none.

        Raises:
            MarketDataError: the cursor is of another feed; `poll` says so where only reading shows that another
                bar, or none, stands there.
        """

    def poll(self) -> Sequence[FeedBar]:
        """The next bars, as many as suit the feed; none where there is none yet or none any more.

        Raises:
            MarketDataError: the source as a whole cannot be read, or is not what the journal is of; a fault of
                one bar is no reason.
        """
