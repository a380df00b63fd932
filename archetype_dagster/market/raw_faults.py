"""Faults of raw records as Polars expressions: what makes a book, a trade or a candle impossible."""

from __future__ import annotations

import polars as pl

PRICES = ("open", "high", "low", "close")


def malformed_book(levels: int) -> pl.Expr:
    """A snapshot with an impossible price or size, a half level, a hole, or a level better than the one before.

    Args:
        levels: number of levels looked at, N.
    """
    faults = []
    for side in ("bid", "ask"):
        for level in range(1, levels + 1):
            price, size = pl.col(f"{side}{level}_price"), pl.col(f"{side}{level}_size")
            faults += [
                ~(price.is_finite() & (price > 0)),
                ~(size.is_finite() & (size >= 0)),
                price.is_not_null() & size.is_null(),
                price.is_null() & (size > 0),
            ]
            if level > 1:
                before = pl.col(f"{side}{level - 1}_price")
                faults += [before.is_null() & price.is_not_null(), price > before if side == "bid" else price < before]
    return _any(faults)


def empty_side() -> pl.Expr:
    """A snapshot or bar with nothing on one side or on both."""
    return pl.col("bid1_price").is_null() | pl.col("ask1_price").is_null()


def zero_size(levels: int) -> pl.Expr:
    """A snapshot or bar with a price of which nothing is offered."""
    return _any([pl.col(f"{side}{level}_size") == 0 for side in ("bid", "ask") for level in range(1, levels + 1)])


def locked() -> pl.Expr:
    """bid1 = ask1."""
    return (pl.col("bid1_price") == pl.col("ask1_price")).fill_null(value=False)


def crossed() -> pl.Expr:
    """bid1 > ask1."""
    return (pl.col("bid1_price") > pl.col("ask1_price")).fill_null(value=False)


def malformed_trade() -> pl.Expr:
    """A trade whose price or size is null, not finite or not positive."""
    price, size = pl.col("price"), pl.col("size")
    good = price.is_finite() & (price > 0) & size.is_finite() & (size > 0)
    return ~good.fill_null(value=False)


def malformed_candle() -> pl.Expr:
    """A candle with impossible prices, volumes or times."""
    good = pl.all_horizontal(
        *[pl.col(name).is_finite() & (pl.col(name) > 0) for name in PRICES],
        pl.col("high") >= pl.max_horizontal("open", "low", "close"),
        pl.col("low") <= pl.min_horizontal("open", "close"),
        pl.col("volume").is_finite() & (pl.col("volume") >= 0),
        pl.col("close_time") > pl.col("open_time"),
    )
    taker = pl.col("taker_buy_volume")
    # Sources round the two volumes separately.
    within = taker.is_finite() & (taker >= 0) & (taker <= pl.col("volume") * (1 + 1e-9))
    return ~(good.fill_null(value=False) & (within | taker.is_null()).fill_null(value=False))


def price_outlier(fraction: float) -> pl.Expr:
    """A bar with a price further than `fraction` from the close of the bar before it."""
    before = pl.col("close").shift(1)
    return _any([(pl.col(name) / before - 1).abs() > fraction for name in PRICES])


def _any(faults: list[pl.Expr]) -> pl.Expr:
    return pl.any_horizontal(fault.fill_null(value=False) for fault in faults)
