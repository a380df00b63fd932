"""Modelled books beside the real books of the same bars: spread, depth and what a position costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import BARS_SCHEMA, assign_segments, num_book_levels
from archetype_dagster.market.book import mark_prices, trade_cost_parts
from archetype_dagster.market.impact import BPS, ImpactCurve
from archetype_dagster.market.modelled_book import add_modelled_book
from archetype_dagster.market.order_books import order_books
from archetype_dagster.settings import ModelledBookSettings, PairSettings
from archetype_dagster.types import FLAT, LONG, SHORT, FloatArray

NEAR_LEVELS: Final = 5


def compare_books(
    bars: pl.DataFrame,
    settings: ModelledBookSettings,
    pair: PairSettings,
    *,
    seed: int,
    bar_minutes: int = 10,
) -> pl.DataFrame:
    """What the modelled book makes of bars whose real book is known.

    The modelled book has as many levels as the real one and sees nothing of it. Costs are those of
    `trade_cost_parts` under `extrapolate`, without commission, averaged over buying and selling.

    Args:
        bars: T bars with an observed book; those with an empty side are left out.
        settings: window and calibration of the modelled book.
        pair: gives m, tick and liquidity.
        seed: seed of the modelled book's noise.
        bar_minutes: length of a bar in minutes.

    Returns:
        One row a measure: `measure` (with its unit), then `real`, `modelled` (medians over the bars), `ratio`
        (modelled over real) and the quartiles `real_low`, `real_high`, `modelled_low`, `modelled_high`.

    Raises:
        MarketDataError: no bar, a book that is not observed, or unusable values.
    """
    bars = bars.filter(pl.all_horizontal(pl.col("bid1_price", "ask1_price").is_not_null()))
    if not bars.height:
        raise MarketDataError("there is no bar with both sides of a book to compare on")
    if set(bars["book_source"].unique()) != {"observed"}:
        raise MarketDataError("only observed books can be compared with modelled ones", field="book_source")
    levels = num_book_levels(bars)
    plain = bars.select(name for name in BARS_SCHEMA if name in bars.columns and name != "book_source")
    modelled = add_modelled_book(
        assign_segments(plain, bar_minutes=bar_minutes),
        settings.model_copy(update={"levels": levels}),
        pair,
        seed=seed,
        bar_minutes=bar_minutes,
    )
    rows = []
    for (measure, real), (_, model) in zip(_measures(bars, pair), _measures(modelled, pair), strict=True):
        low, median, high = np.quantile(real, (0.25, 0.5, 0.75)).tolist()
        model_low, model_median, model_high = np.quantile(model, (0.25, 0.5, 0.75)).tolist()
        rows.append(
            {
                "measure": measure,
                "real": median,
                "modelled": model_median,
                "ratio": model_median / median if median else None,
                "real_low": low,
                "real_high": high,
                "modelled_low": model_low,
                "modelled_high": model_high,
            }
        )
    return pl.DataFrame(rows)


def _measures(bars: pl.DataFrame, pair: PairSettings) -> Iterator[tuple[str, FloatArray]]:
    """Measures of each book by name, float64 (T,); both sides of a book count as one."""
    books, mark, levels = order_books(bars), mark_prices(bars), num_book_levels(bars)
    prices, sizes = (np.stack([getattr(side, field) for side in books]) for field in ("prices", "sizes"))
    yield "spread [bp]", (prices[1, :, 0] - prices[0, :, 0]) / (BPS * mark)
    for seen in dict.fromkeys((NEAR_LEVELS, levels)):
        yield f"depth of {seen} levels, a side [{pair.base}]", sizes[:, :, :seen].sum(axis=2).mean(axis=0)
    for seen in dict.fromkeys((NEAR_LEVELS, levels)):
        distance = np.abs(prices[:, :, seen - 1] - mark).mean(axis=0)
        yield f"distance of level {seen} from the mid [bp]", distance / (BPS * mark)
    costs = trade_cost_parts(
        bars,
        max_position=pair.max_position,
        commission_rate=0.0,
        impact_curve=ImpactCurve.default().scaled(pair.liquidity_scale),
    ).slippage
    for label, times, changes in (
        ("m", 1, ((FLAT, LONG), (FLAT, SHORT))),
        ("2m", 2, ((SHORT, LONG), (LONG, SHORT))),
    ):
        quantity = times * pair.max_position
        cost = np.mean([costs[:, before, after] for before, after in changes], axis=0)
        yield f"cost of {label} = {quantity:g} {pair.base} [bp]", cost / (BPS * quantity * mark)
