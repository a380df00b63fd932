"""How far from the mid an order reaches beyond the visible book, pooled over many deep snapshots.

The curve prices only what a snapshot does not show. It is never fitted to the snapshot at hand:
five visible levels say almost nothing about the sixth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import FloatArray

CURVE_FILE: Final = "impact_curve.yaml"
BPS: Final = 1e-4
DEEP_BOOK_COLUMNS: Final = ("bids_px", "bids_qty", "asks_px", "asks_qty")
_SIZES_PER_DECADE: Final = 8
_SIGNIFICANT_DIGITS: Final = 6


@dataclass(frozen=True)
class ImpactCurve:
    """Marginal distance from the mid as a monotone, capped function of cumulative notional.

    Linear between knots, constant below the first and capped at the last knot's distance.

    Attributes:
        notional: float64 (K,), cumulative notional in quote units, strictly increasing, positive.
        distance_bps: float64 (K,), distance of the price that this size reaches, in basis points,
            never decreasing, not negative.

    Raises:
        ValueError: a knot breaks one of these rules.
    """

    notional: FloatArray
    distance_bps: FloatArray

    def __post_init__(self) -> None:
        if self.notional.ndim != 1 or self.notional.shape != self.distance_bps.shape or not self.notional.size:
            raise ValueError(
                f"notional and distance_bps must be equally long vectors, "
                f"got shapes {self.notional.shape} and {self.distance_bps.shape}"
            )
        if not (np.isfinite(self.notional).all() and np.isfinite(self.distance_bps).all()):
            raise ValueError("impact curve knots must be finite")
        if self.notional[0] <= 0 or (np.diff(self.notional) <= 0).any():
            raise ValueError(f"notional must be positive and strictly increasing, got {self.notional.tolist()}")
        if self.distance_bps[0] < 0 or (np.diff(self.distance_bps) < 0).any():
            raise ValueError(f"distance_bps must be non-negative and never decrease, got {self.distance_bps.tolist()}")

    @classmethod
    def default(cls) -> ImpactCurve:
        """The curve shipped in `configs/impact_curve.yaml`, measured on BTC spot."""
        return _shipped_curve()

    def scaled(self, liquidity_scale: float) -> ImpactCurve:
        """The curve of a market that absorbs `liquidity_scale` times the notional at each distance."""
        if not (np.isfinite(liquidity_scale) and liquidity_scale > 0):
            raise ValueError(f"liquidity_scale must be positive, got liquidity_scale={liquidity_scale}")
        return ImpactCurve(self.notional * liquidity_scale, self.distance_bps)

    def distance(self, notional: FloatArray) -> FloatArray:
        """Distance in basis points of the price that cumulative `notional` reaches; same shape."""
        return np.asarray(np.interp(notional, self.notional, self.distance_bps), dtype=np.float64)

    def excess_cost(self, start: FloatArray, end: FloatArray, floor_bps: FloatArray) -> FloatArray:
        """What the curve adds to a constant distance between two sizes, in quote units.

        The integral of max(0, curve(x) - floor) over x in [start, end]; never negative.

        Args:
            start: float64 (n,), cumulative notional already filled.
            end: float64 (n,), cumulative notional wanted, at least `start`.
            floor_bps: float64 (n,), distance of the worst visible price in basis points.
        """
        # At a distance of exactly the floor both prices agree, so any point of a flat stretch will do.
        crossing = np.interp(floor_bps, self.distance_bps, self.notional, left=0.0, right=np.inf)
        begin = np.clip(crossing, start, end)
        area = self._integral(end) - self._integral(begin) - floor_bps * (end - begin)
        return np.maximum(area, 0.0) * BPS

    def to_yaml(self) -> str:
        """The knots as YAML, rounded to six significant digits."""
        knots = zip(self.notional.tolist(), self.distance_bps.tolist(), strict=True)
        lines = [f"  - [{_rounded(size)!r}, {_rounded(distance)!r}]" for size, distance in knots]
        return "\n".join(["knots:", *lines, ""])

    def _integral(self, notional: FloatArray) -> FloatArray:
        sizes = np.concatenate([[0.0], self.notional])
        distances = np.concatenate([self.distance_bps[:1], self.distance_bps])
        widths = np.diff(sizes)
        areas = np.concatenate([[0.0], np.cumsum(0.5 * (distances[1:] + distances[:-1]) * widths)])
        slopes = np.append(np.diff(distances) / widths, 0.0)
        knot = np.searchsorted(sizes, notional, side="right") - 1
        beyond = notional - sizes[knot]
        return np.asarray(areas[knot] + beyond * (distances[knot] + 0.5 * slopes[knot] * beyond), dtype=np.float64)


def calibrate_impact_curve(
    books: Iterable[pl.DataFrame], *, smallest_notional: float = 1e4, largest_notional: float = 1e8
) -> ImpactCurve:
    """Pool deep snapshots into one curve: per size, the median distance over snapshots and sides.

    Each snapshot's own distance never decreases with size, and neither does a pointwise median over
    one fixed set of snapshots: a side too shallow for a size counts as infinitely far, and the curve
    ends where half of the sides are too shallow. The median keeps a few odd snapshots from moving it.

    Args:
        books: frames with list columns `bids_px`, `bids_qty`, `asks_px`, `asks_qty`, best level
            first; one row a snapshot, prices in quote units and sizes in base units.
        smallest_notional: first size of the grid, in quote units.
        largest_notional: sizes beyond are not looked at.

    Raises:
        MarketDataError: a missing column, no snapshot, or none deep enough for the smallest size.
    """
    decades = np.log10(largest_notional / smallest_notional)
    grid = np.geomspace(smallest_notional, largest_notional, round(decades * _SIZES_PER_DECADE) + 1)
    reached = [_marginal_distance(prices, sizes, mid, grid) for prices, sizes, mid in _sides(books)]
    if not reached:
        raise MarketDataError("no book snapshot to calibrate the impact curve on")
    # The upper middle value: a mean of two middle values could mix a number with an infinity.
    median = np.quantile(np.stack(reached), 0.5, axis=0, method="higher")
    known = np.isfinite(median)
    if not known.any():
        raise MarketDataError(
            f"most book sides are shallower than the smallest size, {smallest_notional:g} quote units"
        )
    return ImpactCurve(grid[known], median[known])


def liquidity_scales(candles: Mapping[str, pl.DataFrame], *, reference: str) -> dict[str, float]:
    """How much notional each pair absorbs relative to `reference`, judged by what is traded in it.

    The median over common candles of the ratio of traded notionals, to three significant digits. Use
    candles of the training span only, so that no later market enters a cost.

    Args:
        candles: frames by pair with `open_time`, `close` (quote units) and `volume` (base units).
        reference: the pair that the impact curve was measured on; its own scale is 1.
    """
    traded = {
        name: frame.select("open_time", (pl.col("close") * pl.col("volume")).alias("notional"))
        for name, frame in candles.items()
    }
    base = traded[reference].filter(pl.col("notional") > 0).rename({"notional": "base"})
    ratios = {
        name: frame.join(base, on="open_time").select((pl.col("notional") / pl.col("base")).median()).item()
        for name, frame in traded.items()
    }
    return {name: float(f"{ratio:.3g}") for name, ratio in ratios.items()}


def _sides(books: Iterable[pl.DataFrame]) -> Iterator[tuple[FloatArray, FloatArray, float]]:
    for book in books:
        for name in DEEP_BOOK_COLUMNS:
            if name not in book.columns:
                raise MarketDataError("a deep book must have this column", field=name)
        columns = (book[name].to_list() for name in DEEP_BOOK_COLUMNS)
        for bid_prices, bid_sizes, ask_prices, ask_sizes in zip(*columns, strict=True):
            mid = 0.5 * (bid_prices[0] + ask_prices[0])
            yield np.asarray(bid_prices), np.asarray(bid_sizes), mid
            yield np.asarray(ask_prices), np.asarray(ask_sizes), mid


def _marginal_distance(prices: FloatArray, sizes: FloatArray, mid: float, grid: FloatArray) -> FloatArray:
    level = np.searchsorted(np.cumsum(sizes) * mid, grid)
    distance = np.append(np.abs(prices - mid) / (mid * BPS), np.inf)
    return distance[level]


def _rounded(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")


@cache
def _shipped_curve() -> ImpactCurve:
    # Here, because a deployed policy brings its own curve and runs without YAML.
    import yaml

    from archetype_dagster.settings import config_text

    knots = np.asarray(yaml.safe_load(config_text(CURVE_FILE))["knots"], dtype=np.float64)
    return ImpactCurve(knots[:, 0].copy(), knots[:, 1].copy())
