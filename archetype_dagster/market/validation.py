"""Checks of a bars table: fatal faults raise with their place, the rest is counted in a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import BARS_SCHEMA, TIMESTAMP, book_columns, num_book_levels
from archetype_dagster.market.gaps import Gap, find_gaps
from archetype_dagster.market.ingestion import IngestionReport
from archetype_dagster.market.raw_faults import PRICES, empty_side, price_outlier, zero_size
from archetype_dagster.types import JsonDict

OUTLIER_FRACTION: Final = 0.25
_BOOK_SOURCES: Final = ("observed", "modelled")


@dataclass(frozen=True)
class BarsReport:
    """What a bars table holds; every count is in rows unless its name says otherwise.

    Attributes:
        bar_minutes: length of a bar in minutes.
        rows: bars.
        first_timestamp: end of the first bar, UTC.
        last_timestamp: end of the last bar, UTC.
        book_levels: levels N on each side.
        book_sources: distinct origins of the book, sorted.
        segments: runs of bars without a break.
        missing_bars: bars of the regular grid that are absent between first and last.
        off_grid_rows: bars that do not end on a multiple of the bar length; each is a segment of its own.
        zero_volume_rows: bars without a trade.
        locked_rows: bid1 = ask1.
        crossed_rows: bid1 > ask1.
        empty_side_rows: a side has no price or no size at the touch.
        one_sided_rows: a side has no price.
        zero_size_rows: there is a price of which nothing is offered.
        outlier_rows: a price is further than a quarter from the close of the bar before.
        gaps: the breaks, oldest first.
        ingestion: what became of the raw records; None where the source holds bars already.
    """

    bar_minutes: int
    rows: int
    first_timestamp: datetime
    last_timestamp: datetime
    book_levels: int
    book_sources: tuple[str, ...]
    segments: int
    missing_bars: int
    off_grid_rows: int
    zero_volume_rows: int
    locked_rows: int
    crossed_rows: int
    empty_side_rows: int
    one_sided_rows: int
    zero_size_rows: int
    outlier_rows: int
    gaps: tuple[Gap, ...]
    ingestion: IngestionReport | None = None

    def as_dict(self) -> JsonDict:
        """The report as plain JSON values; times in ISO 8601."""
        return {
            **asdict(self),
            "first_timestamp": self.first_timestamp.isoformat(),
            "last_timestamp": self.last_timestamp.isoformat(),
            "book_sources": list(self.book_sources),
            "gaps": [
                {
                    "last_before": gap.last_before.isoformat(),
                    "first_after": gap.first_after.isoformat(),
                    "missing_bars": gap.missing_bars,
                }
                for gap in self.gaps
            ],
            "ingestion": None if self.ingestion is None else self.ingestion.as_dict(),
        }

    def gap_table(self) -> pl.DataFrame:
        """The breaks as a table: last_before, first_after, missing_bars."""
        schema = {"last_before": TIMESTAMP, "first_after": TIMESTAMP, "missing_bars": pl.Int64()}
        return pl.DataFrame([asdict(gap) for gap in self.gaps], schema=schema)


def validate_bars(bars: pl.DataFrame, *, bar_minutes: int = 10) -> BarsReport:
    """Check a bars table and describe it.

    Fatal: a missing column or wrong type; no rows; null, duplicate or unsorted times; no bar on the
    grid of `bar_minutes`; null, non-finite or non-positive prices; a high below or a low above open,
    close or each other; negative or non-finite volumes and sizes; a price without a size or a size
    without a price; a level behind a missing one or priced better than the one before. Counted only:
    gaps, single bars off the grid, zero volume, locked, crossed and one-sided books, zero sizes, outliers.

    Args:
        bars: table in the bars schema, oldest first; `segment` is not looked at.
        bar_minutes: length of a bar in minutes.

    Raises:
        MarketDataError: the first fatal fault, with zero-based row, field, rule and value.
        ValueError: `bar_minutes` is not positive.
    """
    if bar_minutes <= 0:
        raise ValueError(f"bar_minutes must be positive, got bar_minutes={bar_minutes}")
    _check_columns(bars)
    field, rule, fault = _source_rule()
    raise_first(bars, fault, field, rule)
    levels = num_book_levels(bars)
    check_times(bars["timestamp"])
    check_candles(bars)
    for field, rule, fault in _book_rules(levels):
        raise_first(bars, fault, field, rule)
    step = timedelta(minutes=bar_minutes) // timedelta(microseconds=1)
    off_grid = int((bars["timestamp"].dt.epoch("us") % step != 0).sum())
    if off_grid == bars.height:
        raise MarketDataError(
            f"bars must end on multiples of {bar_minutes} minutes and none does, got {bars['timestamp'][0]}; "
            "check bar_minutes and that bars are labelled by their end",
            row=0,
            field="timestamp",
        )
    gaps = find_gaps(bars["timestamp"], step)
    touch = pl.col("bid1_price"), pl.col("ask1_price")
    empty = [pl.col(f"{side}1_size").fill_null(0.0) == 0 for side in ("bid", "ask")]
    counts = bars.select(
        zero_volume=(pl.col("volume") == 0).sum(),
        locked=(touch[0] == touch[1]).sum(),
        crossed=(touch[0] > touch[1]).sum(),
        empty=pl.any_horizontal(empty).sum(),
        one_sided=empty_side().sum(),
        zero_size=zero_size(levels).sum(),
        outlier=price_outlier(OUTLIER_FRACTION).sum(),
    ).row(0, named=True)
    return BarsReport(
        bar_minutes=bar_minutes,
        rows=bars.height,
        first_timestamp=bars["timestamp"][0],
        last_timestamp=bars["timestamp"][-1],
        book_levels=levels,
        book_sources=tuple(sorted(bars["book_source"].unique())),
        segments=len(gaps) + 1,
        missing_bars=sum(gap.missing_bars for gap in gaps),
        off_grid_rows=off_grid,
        zero_volume_rows=counts["zero_volume"],
        locked_rows=counts["locked"],
        crossed_rows=counts["crossed"],
        empty_side_rows=counts["empty"],
        one_sided_rows=counts["one_sided"],
        zero_size_rows=counts["zero_size"],
        outlier_rows=counts["outlier"],
        gaps=gaps,
    )


def raise_first(frame: pl.DataFrame, fault: pl.Expr, field: str, rule: str) -> None:
    """Raise `MarketDataError` for the first row where `fault` holds; `rule` says what must be, in words."""
    rows = frame.select(fault.fill_null(value=False).arg_true()).to_series()
    if len(rows):
        row = int(rows[0])
        raise MarketDataError(f"{rule}, got {field}={frame[field][row]}", row=row, field=field)


def check_times(times: pl.Series) -> None:
    """Times must be there and strictly increasing; `MarketDataError` names the first row that is not."""
    if not len(times):
        raise MarketDataError("at least one row is needed, got none", field=times.name)
    field, column = times.name, pl.col(times.name)
    frame = times.to_frame()
    raise_first(frame, column.is_null(), field, f"{field} must not be null")
    raise_first(frame, column == column.shift(1), field, f"{field} must not repeat")
    raise_first(frame, column < column.shift(1), field, f"{field} must be sorted, oldest first")


def check_candles(frame: pl.DataFrame) -> None:
    """Open, high, low, close and the volumes of candles or bars must be possible; else `MarketDataError`."""
    for field, rule, fault in _candle_rules(frame.columns):
        raise_first(frame, fault, field, rule)


def bar_faults(bars: pl.DataFrame) -> list[str | None]:
    """The first rule of `validate_bars` that each row breaks by itself, in words; None where it breaks none.

    For bars that come one by one, where a fault is one bar's and no reason to refuse the others.

    Args:
        bars: table in the bars schema; times are not looked at.

    Raises:
        MarketDataError: a missing column or wrong type.
    """
    _check_columns(bars)
    rules = [*_candle_rules(bars.columns), *_book_rules(num_book_levels(bars)), _source_rule()]
    broken = bars.select(fault.fill_null(value=False).alias(str(place)) for place, (_, _, fault) in enumerate(rules))
    found: list[str | None] = [None] * bars.height
    for row in broken.select(pl.any_horizontal(pl.all())).to_series().arg_true():
        field, rule, _ = rules[broken.row(row).index(True)]
        found[row] = f"{rule}, got {field}={bars[field][row]}"
    return found


def _check_columns(bars: pl.DataFrame) -> None:
    for name, dtype in BARS_SCHEMA.items():
        if name == "segment":
            continue
        if name not in bars.columns:
            raise MarketDataError("a bars table must have this column", field=name)
        found = bars.schema[name]
        fits = found.is_numeric() if dtype == pl.Float64() else found == dtype
        if not fits and not (name == "taker_buy_volume" and found == pl.Null()):
            raise MarketDataError(f"column must have type {dtype}, got {found}", field=name)


def _source_rule() -> tuple[str, str, pl.Expr]:
    known = pl.col("book_source").is_in(_BOOK_SOURCES).fill_null(value=False)
    return "book_source", f"book_source must be one of {', '.join(_BOOK_SOURCES)}", ~known


def _candle_rules(columns: Sequence[str]) -> Iterator[tuple[str, str, pl.Expr]]:
    for field in PRICES:
        value = pl.col(field)
        good = (value.is_finite() & (value > 0)).fill_null(value=False)
        yield field, "price must be finite and positive", ~good
    high, low = pl.col("high"), pl.col("low")
    yield "high", "high must be the highest price", high < pl.max_horizontal("open", "low", "close")
    yield "low", "low must be the lowest price", low > pl.min_horizontal("open", "close")
    volume = pl.col("volume")
    good = (volume.is_finite() & (volume >= 0)).fill_null(value=False)
    yield "volume", "volume must be finite and not negative", ~good
    if "taker_buy_volume" in columns:
        taker = pl.col("taker_buy_volume")
        # Sources round the two volumes separately.
        within = taker.is_finite() & (taker >= 0) & (taker <= volume * (1 + 1e-9))
        yield "taker_buy_volume", "taker_buy_volume must lie between 0 and volume", ~within


def _book_rules(levels: int) -> Iterator[tuple[str, str, pl.Expr]]:
    for name in book_columns(levels):
        side, level, field = name[:3], int(name[3:].split("_")[0]), name.split("_")[1]
        value = pl.col(name)
        if field == "price":
            yield name, "price must be finite and positive", ~(value.is_finite() & (value > 0))
        else:
            yield name, "size must be finite and not negative", ~(value.is_finite() & (value >= 0))
            price = pl.col(f"{side}{level}_price")
            yield name, "a level must have a size", price.is_not_null() & value.is_null()
            yield name, "a size must have a price", price.is_null() & (value > 0)
        if field == "price" and level > 1:
            before = pl.col(f"{side}{level - 1}_price")
            better = value > before if side == "bid" else value < before
            yield name, f"level {level} must not be priced better than level {level - 1}", better
            yield (
                name,
                f"level {level} must not be there without level {level - 1}",
                (before.is_null() & value.is_not_null()),
            )
