"""How well orders beyond the visible book are priced: deep recorded books with all but a few levels hidden.

Beside the depth policies of `trade_costs` three ways are judged that it does not offer: the curve continued from
the worst visible price instead of measured from the mid, and two fits of the snapshot at hand, which show why a
curve is pooled over many snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import MIN_BOOK_LEVELS, book_columns, num_book_levels
from archetype_dagster.market.book import mark_prices, trade_cost_parts
from archetype_dagster.market.book_walk import walk_book
from archetype_dagster.market.impact import BPS, DEEP_BOOK_COLUMNS, ImpactCurve, calibrate_impact_curve
from archetype_dagster.market.order_books import order_books
from archetype_dagster.settings import DepthPolicy
from archetype_dagster.types import FLAT, LONG, FloatArray

SIDES: Final = ("buy", "sell")
EXTRAPOLATED: Final = "extrapolate, "
CONTINUED: Final = "continued, "
LAST_LEVEL: Final = "last_level"
LINEAR_FIT: Final = "linear fit"
POWER_FIT: Final = "power fit"
IN_SAMPLE: Final = "same snapshots"
FIRST_HALF: Final = "first half"
SHIPPED: Final = "shipped"

_Pricing = Callable[[pl.DataFrame, float], FloatArray]
_Rest = Callable[[FloatArray, FloatArray, FloatArray, float], FloatArray]


def wide_books(books: pl.DataFrame) -> pl.DataFrame:
    """Books with list columns `bids_px`, `bids_qty`, `asks_px`, `asks_qty` as `book_columns`; others as they are."""
    if not _has_lists(books):
        return books
    levels = books.select(pl.max_horizontal(pl.col(name).list.len().max() for name in DEEP_BOOK_COLUMNS)).item()
    # book_columns goes level by level: bid price, bid size, ask price, ask size.
    cells = (pl.col(name).list.get(level, null_on_oob=True) for level in range(levels) for name in DEEP_BOOK_COLUMNS)
    return books.select(cell.alias(name) for cell, name in zip(cells, book_columns(levels), strict=True))


def judge_markets(
    books: Mapping[str, pl.DataFrame],
    *,
    levels: Sequence[int],
    quantities: Sequence[float],
    liquidity_scale: float = 1.0,
) -> pl.DataFrame:
    """Judge each market's depth policies with curves made in and out of sample; `judge_depth_policies` by `market`.

    A market recorded with list columns is judged on the second half of its snapshots, with curves from all of
    them, from the first half and from each other such market. A shallower one is judged as a whole, with the
    shipped curve.

    Args:
        books: snapshots by market, oldest first.
        levels: numbers of visible levels.
        quantities: order sizes in base units.
        liquidity_scale: what the shipped curve is stretched by.
    """
    deep = {name: frame for name, frame in books.items() if _has_lists(frame)}
    whole = {name: calibrate_impact_curve([frame]) for name, frame in deep.items()}
    tables = []
    for name, frame in books.items():
        curves, judged = {SHIPPED: ImpactCurve.default().scaled(liquidity_scale)}, frame
        if name in deep:
            half = frame.height // 2
            others = {other: curve for other, curve in whole.items() if other != name}
            curves = {IN_SAMPLE: whole[name], FIRST_HALF: calibrate_impact_curve([frame[:half]]), **others}
            judged = frame[half:]
        table = judge_depth_policies(judged, curves, levels=levels, quantities=quantities)
        tables.append(table.select(pl.lit(name).alias("market"), pl.all()))
    return pl.concat(tables)


def judge_depth_policies(
    books: pl.DataFrame, curves: Mapping[str, ImpactCurve], *, levels: Sequence[int], quantities: Sequence[float]
) -> pl.DataFrame:
    """Error of each way to price an order of which only the first levels are seen, in bp of its notional at the mark.

    The policies' prices come from `trade_cost_parts`, as everywhere; the truth is the walk over all recorded
    levels. Snapshots with an empty side are left out, and for an order those whose recorded levels cannot fill
    it, as they do not know its true cost.

    Args:
        books: T snapshots, wide or with list columns (see `wide_books`).
        curves: impact curves by name, each judged as `extrapolate, <name>` and as `continued, <name>`.
        levels: numbers of visible levels, at least five.
        quantities: order sizes in base units.

    Returns:
        One row for each number of levels, size, side and policy: `levels`, `quantity`, `side`, `orders`
        (number judged), `visible_share` (share that the visible levels fill alone; the others are what
        `reject` refuses and `partial` leaves), `true_bps` (mean), `policy`, `bias_bps` (mean error),
        `error_bps` (mean absolute error) and `worst_bps` (largest absolute error).

    Raises:
        MarketDataError: unusable books, more or fewer visible levels than there are, or an order that no
            snapshot can fill.
    """
    deep = wide_books(books).filter(pl.all_horizontal(pl.col("bid1_price", "ask1_price").is_not_null()))
    recorded = num_book_levels(deep)
    for visible in levels:
        if not MIN_BOOK_LEVELS <= visible <= recorded:
            raise MarketDataError(f"visible levels must lie between {MIN_BOOK_LEVELS} and {recorded}, got {visible}")
    sides = order_books(deep)
    mark = mark_prices(deep)
    ways: dict[str, _Pricing] = {
        LAST_LEVEL: _policy(LAST_LEVEL, None),
        **{EXTRAPOLATED + name: _policy("extrapolate", curve) for name, curve in curves.items()},
        **{CONTINUED + name: _beyond(partial(_continued, curve)) for name, curve in curves.items()},
        LINEAR_FIT: _beyond(_linear_fit),
        POWER_FIT: _beyond(_power_fit),
    }
    rows: list[dict[str, object]] = []
    for visible in levels:
        seen = deep.select(book_columns(visible))
        for quantity in quantities:
            scale = BPS * quantity * mark
            priced = {name: price(seen, quantity) / scale for name, price in ways.items()}
            for index, (side, book) in enumerate(zip(SIDES, (sides.ask, sides.bid), strict=True)):
                fill = walk_book(np.abs(book.prices - mark[:, None]), book.sizes, quantity)
                known = fill.unfilled == 0
                if not known.any():
                    raise MarketDataError(f"no snapshot's {recorded} levels fill an order of {quantity:g}")
                true = (fill.cash / scale)[known]
                shown = book.sizes[known, :visible].sum(axis=1) >= quantity
                order = {"levels": visible, "quantity": quantity, "side": side, "orders": len(true)}
                order |= {"visible_share": shown.mean(), "true_bps": true.mean()}
                for name, losses in priced.items():
                    error = losses[index][known] - true
                    size = np.abs(error)
                    errors = {"bias_bps": error.mean(), "error_bps": size.mean(), "worst_bps": size.max()}
                    rows.append({**order, "policy": name, **errors})
    return pl.DataFrame(rows)


def _has_lists(books: pl.DataFrame) -> bool:
    return set(DEEP_BOOK_COLUMNS) <= set(books.columns)


def _policy(policy: DepthPolicy, curve: ImpactCurve | None) -> _Pricing:
    def price(seen: pl.DataFrame, quantity: float) -> FloatArray:
        parts = trade_cost_parts(
            seen, max_position=quantity, commission_rate=0.0, depth_policy=policy, impact_curve=curve
        )
        return np.stack([parts.slippage[:, FLAT, LONG], parts.slippage[:, LONG, FLAT]])

    return price


def _beyond(rest: _Rest) -> _Pricing:
    """Losses of buys and sells, (2, T), in which `rest` prices what the visible levels do not fill."""

    def price(seen: pl.DataFrame, quantity: float) -> FloatArray:
        mark, books = mark_prices(seen), order_books(seen)
        losses = []
        for side in (books.ask, books.bid):
            distance = np.abs(side.prices - mark[:, None])
            fill = walk_book(distance, side.sizes, quantity)
            short = np.flatnonzero(fill.unfilled)
            fill.cash[short] += rest(mark[short], side.sizes[short], distance[short], quantity)
            losses.append(fill.cash)
        return np.stack(losses)

    return price


def _continued(
    curve: ImpactCurve, mark: FloatArray, sizes: FloatArray, distance: FloatArray, quantity: float
) -> FloatArray:
    """The worst visible distance, plus what the curve rises from the size already filled."""
    held: FloatArray = sizes.sum(axis=1)
    start, end = held * mark, quantity * mark
    return (quantity - held) * distance[:, -1] + curve.excess_cost(start, end, curve.distance(start))


def _linear_fit(mark: FloatArray, sizes: FloatArray, distance: FloatArray, quantity: float) -> FloatArray:
    """Least squares of distance over cumulative size."""
    depth = np.cumsum(sizes, axis=1)
    intercept, slope = _least_squares(depth, distance)
    held = depth[:, -1]
    area = intercept * (quantity - held) + slope * (quantity**2 - held**2) / 2
    return np.minimum(area, (quantity - held) * mark)


def _power_fit(mark: FloatArray, sizes: FloatArray, distance: FloatArray, quantity: float) -> FloatArray:
    """Least squares of the logarithm of distance over that of cumulative size."""
    depth = np.cumsum(sizes, axis=1)
    intercept, power = _least_squares(np.log(depth), np.log(distance))
    held, whole = depth[:, -1], power + 1
    with np.errstate(over="ignore", invalid="ignore"):
        area = np.exp(intercept + whole * np.log(quantity)) - np.exp(intercept + whole * np.log(held))
    # The fit may overflow; no more than the whole price is lost, here as above.
    return np.where(np.isfinite(area), np.minimum(area / whole, (quantity - held) * mark), (quantity - held) * mark)


def _least_squares(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Intercept and slope of each row's straight line, float64 (T,) each."""
    x_mean, y_mean = x.mean(axis=1), y.mean(axis=1)
    deviation = x - x_mean[:, None]
    slope = (deviation * (y - y_mean[:, None])).sum(axis=1) / (deviation**2).sum(axis=1)
    return y_mean - slope * x_mean, slope
