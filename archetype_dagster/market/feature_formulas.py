"""The 45 features as functions of arrays: names, formulas and arithmetic, written once for table and stream.

The paper gives names and order but no formulas; `FEATURE_FORMULAS` is the definition. In it o, h, l, c
are open, high, low and close; bid_i, ask_i the i-th best prices; mid is the mark price; sums run over
the five best levels. An absent level has size 0 and the price above it; an empty side has size 0 and
every price at the mark. Everything works element by element, so no bit of a bar depends on how many
bars are computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from archetype_dagster.market.order_books import OrderBooks
from archetype_dagster.market.rolling import Moments, window_moments
from archetype_dagster.types import FeatureScale, FloatArray

WARMUP_BARS: Final = 60
BOOK_LEVELS: Final = 5
_TREND_RESIDUE: Final = 1e-12

TRENDED: Final = (
    "ask1_price",
    "bid1_price",
    "buy_spread",
    "sell_spread",
    "wap_1",
    "wap_2",
    "buy_vwap",
    "sell_vwap",
    "volume",
)
RETURNED: Final = ("bid1_price", "bid2_price", "ask1_price", "ask2_price", "wap_1")
_DIVIDED_BY_MID: Final = ("wap_1", "wap_2", "wap_balance", "buy_spread", "sell_spread", "sell_vwap", "buy_vwap")

_SHARES: Final = tuple(f"{side}{level}_size_n" for level in range(1, BOOK_LEVELS + 1) for side in ("bid", "ask"))

FEATURE_FORMULAS: Final[dict[str, str]] = {
    "volume": "traded volume [base units]",
    **{f"bid{i}_size_n": f"bid{i}_size / sum of bid sizes, 0 if that is 0 [share]" for i in range(1, BOOK_LEVELS + 1)},
    **{f"ask{i}_size_n": f"ask{i}_size / sum of ask sizes, 0 if that is 0 [share]" for i in range(1, BOOK_LEVELS + 1)},
    "wap_1": "(bid_1 ask1_size + ask_1 bid1_size) / (bid1_size + ask1_size), mean of both if that is 0 [quote; / mid]",
    "wap_2": "as wap_1 on the second level [quote; / mid]",
    "wap_balance": "wap_1 - wap_2 [quote; / mid]",
    "buy_spread": "|bid_1 - bid_5| [quote; / mid]",
    "sell_spread": "|ask_1 - ask_5| [quote; / mid]",
    "buy_volume": "sum of bid sizes [base units]",
    "sell_volume": "sum of ask sizes [base units]",
    "volume_imbalance": "(buy_volume - sell_volume) / (buy_volume + sell_volume), 0 if that is 0 [-1..1]",
    "price_spread": "2 (ask_1 - bid_1) / (ask_1 + bid_1) [fraction]",
    "sell_vwap": "sum of ask_i size_i / sell_volume, ask_1 if that is 0 [quote; / mid]",
    "buy_vwap": "sum of bid_i size_i / buy_volume, bid_1 if that is 0 [quote; / mid]",
    **{f"log_return_{name}": f"ln of {name} over {name} one bar before [fraction]" for name in RETURNED},
    "kmid": "(c - o) / o [fraction]",
    "klen": "(h - l) / o [fraction]",
    "kmid2": "(c - o) / (h - l), 0 if h = l [-1..1]",
    "kup": "(h - max(o, c)) / o [fraction]",
    "kup2": "(h - max(o, c)) / (h - l), 0 if h = l [0..1]",
    "klow": "(min(o, c) - l) / o [fraction]",
    "klow2": "(min(o, c) - l) / (h - l), 0 if h = l [0..1]",
    "ksft": "(2 c - h - l) / o [fraction]",
    "ksft2": "(2 c - h - l) / (h - l), 0 if h = l [-1..1]",
    **{
        f"{name}_trend_60": f"(x - mean) / (std + eps) of undivided x = {name} over this bar and 59 before [deviations]"
        for name in TRENDED
    },
}
FEATURE_NAMES: Final = tuple(FEATURE_FORMULAS)
"""The 45 names in the paper's order."""


class Candles(NamedTuple):
    """Open, high, low and close in quote units and volume in base units, each float64 (T,)."""

    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray


def bar_quantities(books: OrderBooks, mid: FloatArray, candles: Candles) -> dict[str, FloatArray]:
    """What a bar says by itself: its undivided features and the prices that returns and trends need, (T,) each.

    Args:
        books: T books of at least five levels.
        mid: float64 (T,), mark prices.
        candles: T candles with positive prices.
    """
    prices, sizes = np.empty((2, BOOK_LEVELS, len(books), len(mid)))
    for number, side in enumerate(books):
        prices[:, number], sizes[:, number] = side.prices[:, :BOOK_LEVELS].T, side.sizes[:, :BOOK_LEVELS].T
        prices[:, number, side.empty] = mid[side.empty]
    values = prices * sizes
    # Added up one by one, as `sum` does: a reduction may take another order, and other bits, for other lengths.
    depth, notional = sum(sizes[1:], sizes[0]), sum(values[1:], values[0])
    buy_vwap, sell_vwap = _ratio(notional, depth, otherwise=prices[0])
    shares = _ratio(sizes, depth).reshape(2 * BOOK_LEVELS, -1)
    opposite, (bids, asks) = prices[:2] * sizes[:2, ::-1], np.swapaxes(prices[:2], 0, 1)
    touching = sizes[:2, 0] + sizes[:2, 1]
    wap_1, wap_2 = _ratio(opposite[:, 0] + opposite[:, 1], touching, otherwise=(bids + asks) / 2)
    (best_bid, best_ask), (bid_depth, ask_depth) = prices[0], depth
    spreads = np.abs(prices[0] - prices[-1])
    return {
        "volume": candles.volume,
        **dict(zip(_SHARES, shares, strict=True)),
        "wap_1": wap_1,
        "wap_2": wap_2,
        "wap_balance": wap_1 - wap_2,
        "buy_spread": spreads[0],
        "sell_spread": spreads[1],
        "buy_volume": bid_depth,
        "sell_volume": ask_depth,
        "volume_imbalance": _ratio(bid_depth - ask_depth, bid_depth + ask_depth),
        "price_spread": 2 * (best_ask - best_bid) / (best_ask + best_bid),
        "sell_vwap": sell_vwap,
        "buy_vwap": buy_vwap,
        "bid1_price": best_bid,
        "bid2_price": prices[1, 0],
        "ask1_price": best_ask,
        "ask2_price": prices[1, 1],
        **_candle_shape(candles),
    }


def trend(values: FloatArray, residue: float | FloatArray) -> FloatArray:
    """(x - mean) / (std + eps) of each bar over itself and the 59 before, float64 (..., T - 59), first for bar 59.

    Fewer than 60 bars have no trend: (..., 0).

    Args:
        values: float64 (..., T).
        residue: eps of each result, broadcast against it (see `trend_residues`).
    """
    if values.shape[-1] < WARMUP_BARS:
        return np.empty((*values.shape[:-1], 0))
    return deviations(values[..., WARMUP_BARS - 1 :], window_moments(values, WARMUP_BARS), residue)


def deviations(values: FloatArray, moments: Moments, residue: float | FloatArray) -> FloatArray:
    """(x - mean) / (std + eps) of values with the moments of the windows that they end; all of one shape."""
    deviation: FloatArray = (values - moments.mean) / (moments.std + residue)
    return deviation


def trend_residues(mid: FloatArray) -> FloatArray:
    """eps of each trend of `TRENDED`, (9, T): 1e-12 of the mid for prices, 1e-12 for volume; residue is no movement."""
    residues = np.empty((len(TRENDED), len(mid)))
    residues[:] = _TREND_RESIDUE * mid
    residues[TRENDED.index("volume")] = _TREND_RESIDUE
    return residues


def feature_values(
    now: Mapping[str, FloatArray],
    before: Mapping[str, FloatArray],
    trends: Mapping[str, FloatArray],
    mid: FloatArray,
    *,
    scale: FeatureScale,
) -> list[FloatArray]:
    """The features of n bars in the order of `FEATURE_NAMES`, float64 (n,) each.

    Args:
        now: `bar_quantities` of the bars.
        before: quantities named in `RETURNED` of the bars right before them.
        trends: `trend` of the quantities named in `TRENDED`.
        mid: float64 (n,), mark prices.
        scale: `relative` divides price levels and differences by the mid.
    """
    divided = {name: now[name] / mid for name in _DIVIDED_BY_MID} if scale == "relative" else {}
    returns = {f"log_return_{name}": np.log(now[name] / before[name]) for name in RETURNED}
    values = {**now, **divided, **returns, **{f"{name}_trend_60": trends[name] for name in TRENDED}}
    return [values[name] for name in FEATURE_NAMES]


def _candle_shape(candles: Candles) -> dict[str, FloatArray]:
    first, high, low, last, _ = candles
    reach = high - low
    moves = np.array(
        [last - first, high - np.maximum(first, last), np.minimum(first, last) - low, 2 * last - high - low]
    )
    shares = zip(("kmid", "kup", "klow", "ksft"), moves / first, _ratio(moves, reach), strict=True)
    shape = {"klen": reach / first}
    for name, of_open, of_reach in shares:
        shape |= {name: of_open, f"{name}2": of_reach}
    return shape


def _ratio(numerator: FloatArray, denominator: FloatArray, *, otherwise: FloatArray | None = None) -> FloatArray:
    """numerator / denominator where that is positive; else 0, or what is given, of the numerator's shape."""
    result = np.zeros(numerator.shape) if otherwise is None else otherwise.copy()
    return np.divide(numerator, denominator, out=result, where=denominator > 0)
