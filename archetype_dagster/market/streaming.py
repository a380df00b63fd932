"""Features bar by bar for live trading: the batch's own formulas over the last 60 bars, in NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, Self

import numpy as np

from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.feature_formulas import (
    BOOK_LEVELS,
    FLOATS,
    RETURNED,
    TRENDED,
    WARMUP_BARS,
    Candles,
    bar_quantities,
    deviations,
    feature_values,
    float_levels,
    trend_residues,
)
from archetype_dagster.market.rolling import RollingMoments
from archetype_dagster.market.single_bar import SingleBar, bar_end, read_bar
from archetype_dagster.types import FeatureScale, FloatArray, JsonDict

STATE_VERSION: Final = 1


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
        self._moments = RollingMoments(len(TRENDED), WARMUP_BARS)
        self._before = dict.fromkeys(RETURNED, 0.0)

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
        return self.advance(read_bar(bar, levels=BOOK_LEVELS))

    def advance(self, bar: SingleBar) -> FloatArray | None:
        """`push` for a bar that is read already, with five levels or more."""
        timestamp = bar.timestamp
        if self._timestamp is not None and timestamp <= self._timestamp:
            raise MarketDataError(
                f"must grow from bar to bar, got {timestamp} after {self._timestamp}", field="timestamp"
            )
        mid = bar.mid.item()
        bids, asks = (float_levels(side, mid) for side in bar.books)
        now = bar_quantities(bids, asks, Candles(*(column.item() for column in bar.candles)), FLOATS)
        if self._starts_segment(timestamp, bar.segment):
            self._bars = 0
        before, self._before = self._before, {name: now[name] for name in RETURNED}
        trended = np.array([now[name] for name in TRENDED])
        moments = self._moments.push(trended)
        self._timestamp, self._segment, self._bars = timestamp, bar.segment, self._bars + 1
        if self.bars_missing:
            return None
        deviation = deviations(trended, moments, trend_residues(bar.mid)[:, 0])
        trends = dict(zip(TRENDED, deviation.tolist(), strict=True))
        return np.array(feature_values(now, before, trends, mid, scale=self._scale))

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
            "window": dict(zip(TRENDED, self._moments.values()[:, WARMUP_BARS - kept :].tolist(), strict=True)),
            "before": dict(self._before),
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
            before = {name: float(state["before"][name]) for name in RETURNED}
            bars, ended, segment = int(state["bars"]), state["timestamp"], state["segment"]
            kept = min(bars, WARMUP_BARS)
            if window.shape != (len(TRENDED), kept) or not (
                np.isfinite(window).all() and all(map(isfinite, before.values()))
            ):
                raise ValueError(f"its window is not {kept} finite values of each of {', '.join(TRENDED)}")
            if bars:
                stream._timestamp = bar_end({"timestamp": datetime.fromisoformat(ended)})
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"this is not the state of a feature stream ({error})") from error
        for values in window.T:
            stream._moments.push(values)
        stream._before = before
        stream._bars, stream._segment = bars, segment
        return stream

    def _starts_segment(self, timestamp: datetime, segment: int | None) -> bool:
        if self._timestamp is None:
            return True
        renumbered = None not in (segment, self._segment) and segment != self._segment
        return renumbered or timestamp - self._timestamp != timedelta(minutes=self._bar_minutes)
