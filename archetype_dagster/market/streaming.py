"""Features bar by bar for live trading: the batch's own formulas over the last 60 bars, in NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, SupportsFloat

import numpy as np

from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.bars import book_columns, num_book_levels, widen_touch
from archetype_dagster.market.book import mark_of_books
from archetype_dagster.market.feature_formulas import (
    BOOK_LEVELS,
    RETURNED,
    TRENDED,
    WARMUP_BARS,
    Candles,
    bar_quantities,
    feature_values,
    trend,
    trend_residues,
)
from archetype_dagster.market.order_books import OrderBooks, book_side
from archetype_dagster.settings import FeatureScale
from archetype_dagster.types import FloatArray, JsonDict

STATE_VERSION: Final = 1
_BOOK: Final = tuple(book_columns(BOOK_LEVELS))
_POSITIVE: Final = frozenset(("open", "high", "low", "close", *(name for name in _BOOK if name.endswith("_price"))))


class FeatureStream:
    """The rows of `compute_features`, one bar at a time, with only the last 60 bars kept.

    Every feature equals the table's bit for bit, because both evaluate the same functions on the same
    numbers in the same order. The one exception is possible in the five log returns: NumPy may round the
    logarithm of a long array and of a single number differently on a processor whose vector instructions
    it uses for one of them; that is one unit in the last place, far below 1e-9.

    A bar that does not end one bar length after the last one, or that carries another `segment`, starts
    a new segment and its warm-up, as `assign_segments` has it.

    Args:
        scale: `relative` divides price levels and differences by the mid; `raw` keeps them.
        bar_minutes: length of a bar in minutes.

    Raises:
        ValueError: unknown scale or a bar length that is not positive.
    """

    def __init__(self, *, scale: FeatureScale = "relative", bar_minutes: int = 10) -> None:
        if scale not in ("relative", "raw"):
            raise ValueError(f"scale must be 'relative' or 'raw', got scale={scale!r}")
        if bar_minutes <= 0:
            raise ValueError(f"bar_minutes must be positive, got bar_minutes={bar_minutes}")
        self._scale = scale
        self._bar_minutes = bar_minutes
        self._bars = 0
        self._timestamp: datetime | None = None
        self._segment: int | None = None
        self._window = np.zeros((len(TRENDED), WARMUP_BARS))
        self._before = np.zeros(len(RETURNED))

    @property
    def bars_missing(self) -> int:
        """Bars of this segment still to come before features do, the first one with features included; 0 if ready."""
        return max(WARMUP_BARS + 1 - self._bars, 0)

    def push(self, bar: Mapping[str, Any]) -> FloatArray | None:
        """Take the next bar; its 45 features, float64 (45,), or None where it has no 60 predecessors.

        Args:
            bar: a row of a bars table by column name, e.g. of `iter_rows(named=True)`: `timestamp` (bar
                end, aware datetime), open, high, low, close, volume and at least five book levels, where
                None stands for null; `segment` where there is one. Other columns are ignored.

        Raises:
            MarketDataError: a missing column, an unusable value or a time that does not grow; the stream
                then stays as it was before the bar.
        """
        timestamp = _bar_end(bar)
        if self._timestamp is not None and timestamp <= self._timestamp:
            raise MarketDataError(
                f"must grow from bar to bar, got {timestamp} after {self._timestamp}", field="timestamp"
            )
        candles = Candles(*_numbers(bar, Candles._fields)[:, None])
        books = _book(bar)
        mid = mark_of_books(books, candles.close)
        now = bar_quantities(books, mid, candles)
        segment = bar.get("segment")
        if self._starts_segment(timestamp, segment):
            self._bars = 0
        before = dict(zip(RETURNED, self._before[:, None], strict=True))
        self._window[:, :-1] = self._window[:, 1:]
        self._window[:, -1:] = [now[name] for name in TRENDED]
        self._before = np.concatenate([now[name] for name in RETURNED])
        self._timestamp, self._segment, self._bars = timestamp, segment, self._bars + 1
        if self.bars_missing:
            return None
        trends = dict(zip(TRENDED, trend(self._window, trend_residues(mid)), strict=True))
        return np.concatenate(feature_values(now, before, trends, mid, scale=self._scale))

    def state(self) -> JsonDict:
        """Everything the next bars need, as JSON values; `restore` gives the same stream to the last bit."""
        kept = min(self._bars, WARMUP_BARS)
        return {
            "version": STATE_VERSION,
            "scale": self._scale,
            "bar_minutes": self._bar_minutes,
            "bars": self._bars,
            "timestamp": None if self._timestamp is None else self._timestamp.isoformat(),
            "segment": self._segment,
            "window": dict(zip(TRENDED, self._window[:, WARMUP_BARS - kept :].tolist(), strict=True)),
            "before": dict(zip(RETURNED, self._before.tolist(), strict=True)),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The stream that `state` describes.

        Raises:
            ArtifactError: a key is missing or a value is not what `state` writes.
        """
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"it has version {state['version']}, this version reads {STATE_VERSION}")
            stream = cls(scale=state["scale"], bar_minutes=state["bar_minutes"])
            window = np.array([state["window"][name] for name in TRENDED], dtype=np.float64)
            before = np.array([state["before"][name] for name in RETURNED], dtype=np.float64)
            bars, ended, segment = int(state["bars"]), state["timestamp"], state["segment"]
            kept = min(bars, WARMUP_BARS)
            if window.shape != (len(TRENDED), kept) or not (np.isfinite(window).all() and np.isfinite(before).all()):
                raise ValueError(f"its window is not {kept} finite values of each of {', '.join(TRENDED)}")
            if bars:
                stream._timestamp = _bar_end({"timestamp": datetime.fromisoformat(ended)})
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"this is not the state of a feature stream ({error})") from error
        stream._window[:, WARMUP_BARS - kept :], stream._before = window, before
        stream._bars, stream._segment = bars, segment
        return stream

    def _starts_segment(self, timestamp: datetime, segment: int | None) -> bool:
        if self._timestamp is None:
            return True
        renumbered = None not in (segment, self._segment) and segment != self._segment
        return renumbered or timestamp - self._timestamp != timedelta(minutes=self._bar_minutes)


def _bar_end(bar: Mapping[str, Any]) -> datetime:
    try:
        timestamp = bar["timestamp"]
    except KeyError:
        raise MarketDataError("missing column", field="timestamp") from None
    if not isinstance(timestamp, datetime) or timestamp.tzinfo is None:
        raise MarketDataError(f"must be a datetime with its time zone, got {timestamp!r}", field="timestamp")
    return timestamp.astimezone(UTC)


def _book(bar: Mapping[str, Any]) -> OrderBooks:
    values = _numbers(bar, _BOOK, nullable=True).reshape(BOOK_LEVELS, 4)
    if values[0, 0] >= values[0, 2]:
        values = _widened(bar)
    prices, sizes = values[:, [0, 2], None], values[:, [1, 3], None]
    return OrderBooks(*(book_side(prices[:, side], sizes[:, side]) for side in (0, 1)))


def _widened(bar: Mapping[str, Any]) -> FloatArray:
    """The first levels of a locked or crossed book by the policy `widen`, which looks at every level for its tick."""
    levels = num_book_levels(bar)
    values = np.array([bar[name] for name in book_columns(levels)], dtype=np.float64).reshape(levels, 4)
    bids, asks = widen_touch(values[None, :, 0], values[None, :, 2])
    values[:, 0], values[:, 2] = bids[0], asks[0]
    return values[:BOOK_LEVELS]


def _numbers(bar: Mapping[str, Any], names: Sequence[str], *, nullable: bool = False) -> FloatArray:
    """Values of a bar, float64 (n,), NaN for None, under the rules of `number_column`."""
    try:
        # NumPy reads None as NaN.
        values = np.array([bar[name] for name in names], dtype=np.float64)
    except KeyError as missing:
        raise MarketDataError("missing column", field=str(missing.args[0])) from None
    except (TypeError, ValueError):
        name = next(name for name in names if not isinstance(bar[name], SupportsFloat | None))
        raise MarketDataError(f"must be a number, got {bar[name]!r}", field=name) from None
    usable = np.isfinite(values) & (values >= 0)
    # Almost every bar ends here; the rest looks for the value at fault.
    for index in np.flatnonzero(~usable | (values == 0)).tolist():
        name = names[index]
        positive = name in _POSITIVE
        if (nullable and bar[name] is None) or (usable[index] and not positive):
            continue
        rule = "positive and finite" if positive else "finite and not negative"
        raise MarketDataError(f"must be {rule}, got {bar[name]}", field=name)
    return values
