"""Looking at delivered bars one by one: which rules a bar breaks by itself, whatever came before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import BARS_SCHEMA, TIMESTAMP, book_columns, num_book_levels
from archetype_dagster.market.raw_faults import crossed, empty_side, locked, zero_size
from archetype_dagster.market.single_bar import bar_end, read_bar
from archetype_dagster.market.validation import bar_faults
from archetype_dagster.paper_trading.feeds import FeedBar

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SeenBar:
    """A delivered bar and what is wrong with it.

    Attributes:
        cursor: where it stands in the feed.
        end: bar end, UTC; None where it tells none.
        row: its values in the bars schema, without `segment`, so that time alone tells gaps.
        broken: the first rule of `validate_bars` that it breaks, in words; None where it breaks none.
        flags: faults that need not make it useless, as `FeedFaultSettings` names them.
    """

    cursor: str
    end: datetime | None
    row: dict[str, Any]
    broken: str | None
    flags: tuple[str, ...] = ()


def look_at(bars: Sequence[FeedBar], *, bar_minutes: int, now: datetime | None = None) -> list[SeenBar]:
    """The bars with their own faults; a fault of one does not touch another.

    Args:
        bars: as delivered.
        bar_minutes: length of a bar.
        now: when they were delivered, UTC; None where no bar counts as one of the future.
    """
    if not bars:
        return []
    try:
        return _seen_together(bars, timedelta(minutes=bar_minutes), now)
    except (MarketDataError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        if len(bars) > 1:
            return [seen for bar in bars for seen in look_at([bar], bar_minutes=bar_minutes, now=now)]
        return [SeenBar(bars[0].cursor, None, {}, _reason(bars[0].row, error))]


def _reason(row: Mapping[str, Any], error: Exception) -> str:
    """What is wrong with a bar that no table takes, by its own field where there is one."""
    try:
        read_bar(row)
    except MarketDataError as told:
        return str(told)
    return str(error)


def _seen_together(bars: Sequence[FeedBar], length: timedelta, now: datetime | None) -> list[SeenBar]:
    ends = [bar_end(bar.row) for bar in bars]
    levels = max(num_book_levels(bar.row) for bar in bars)
    fixed = {name: dtype for name, dtype in BARS_SCHEMA.items() if name not in ("timestamp", "segment")}
    schema = {"timestamp": TIMESTAMP, **fixed, **dict.fromkeys(book_columns(levels), pl.Float64())}
    rows = [
        {**{name: bar.row.get(name) for name in schema}, "timestamp": end} for bar, end in zip(bars, ends, strict=True)
    ]
    frame = pl.DataFrame(rows, schema=schema)
    own = {"locked_book": locked(), "crossed_book": crossed(), "one_sided_book": empty_side()}
    found = frame.select(**own, zero_size=zero_size(levels)).to_dict(as_series=False)
    ahead = [now is not None and end - now > length for end in ends]
    flags = {"future_bar": ahead, "off_grid_bar": [bool((end - _EPOCH) % length) for end in ends], **found}
    return [
        SeenBar(bar.cursor, end, row, broken, tuple(name for name, rows_with in flags.items() if rows_with[place]))
        for place, (bar, end, row, broken) in enumerate(
            zip(bars, ends, frame.iter_rows(named=True), bar_faults(frame), strict=True)
        )
    ]
