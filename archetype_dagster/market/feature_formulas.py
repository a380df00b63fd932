"""The 45 features as functions of arrays: names, formulas and arithmetic, written once for table and stream.

The paper gives names and order but no formulas; `FEATURE_FORMULAS` is the definition. In it o, h, l, c
are open, high, low and close; bid_i, ask_i the i-th best prices; mid is the mark price; sums run over
the five best levels. An absent level has size 0 and the price above it; an empty side has size 0 and
every price at the mark. Everything works element by element, on arrays of many bars or on the floats
of one, so no bit of a bar depends on how many bars are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, mul
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from archetype_dagster.market.order_books import BookSide
from archetype_dagster.market.rolling import Moments, window_moments
from archetype_dagster.types import FeatureScale, FloatArray

Number = TypeVar("Number", float, FloatArray)

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


class Candles(NamedTuple, Generic[Number]):
    """Open, high, low and close in quote units and volume in base units."""

    open: Number
    high: Number
    low: Number
    close: Number
    volume: Number


class Levels(NamedTuple, Generic[Number]):
    """The five best prices of a side, quote units, and the sizes there, base units; see `array_levels`."""

    prices: Sequence[Number]
    sizes: Sequence[Number]


@dataclass(frozen=True)
class Arithmetic(Generic[Number]):
    """What the formulas need besides operators, for one kind of numbers.

    Attributes:
        ratio: numerator / denominator where that is positive, else the third.
        larger: of two.
        smaller: of two.
    """

    ratio: Callable[[Number, Number, Number | float], Number]
    larger: Callable[[Number, Number], Number]
    smaller: Callable[[Number, Number], Number]


def _array_ratio(numerator: FloatArray, denominator: FloatArray, otherwise: FloatArray | float) -> FloatArray:
    result: FloatArray = np.full(numerator.shape, otherwise, dtype=np.float64)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


def _float_ratio(numerator: float, denominator: float, otherwise: float) -> float:
    return numerator / denominator if denominator > 0 else otherwise


ARRAYS: Final = Arithmetic[FloatArray](_array_ratio, np.maximum, np.minimum)
"""Numbers are float64 (T,): T bars at once."""
FLOATS: Final = Arithmetic[float](_float_ratio, max, min)
"""Numbers are Python's, which are the same IEEE doubles: one bar, without the calls that arrays of one element need."""


def array_levels(side: BookSide, mid: FloatArray) -> Levels[FloatArray]:
    """The five best levels of a side of T books; an empty side has size 0 and every price at the mark."""
    prices = [np.where(side.empty, mid, side.prices[:, level]) for level in range(BOOK_LEVELS)]
    return Levels(prices, [side.sizes[:, level] for level in range(BOOK_LEVELS)])


def float_levels(side: BookSide, mid: float) -> Levels[float]:
    """`array_levels` of a single book."""
    prices = [mid] * BOOK_LEVELS if side.empty[0] else side.prices[0, :BOOK_LEVELS].tolist()
    return Levels(prices, side.sizes[0, :BOOK_LEVELS].tolist())


def bar_quantities(
    bids: Levels[Number], asks: Levels[Number], candles: Candles[Number], of: Arithmetic[Number]
) -> dict[str, Number]:
    """What a bar says by itself: its undivided features and the prices that returns and trends need.

    Args:
        bids: of the bar's book, or of each of T bars.
        asks: likewise.
        candles: likewise, with positive prices.
        of: `ARRAYS` or `FLOATS`; the same operations in the same order, so the same bits.
    """
    buy_volume, sell_volume = _added(bids.sizes), _added(asks.sizes)
    buy_value, sell_value = (_added(list(map(mul, side.prices, side.sizes))) for side in (bids, asks))
    (bid_1, bid_2), (ask_1, ask_2) = bids.prices[:2], asks.prices[:2]
    wap_1, wap_2 = (
        of.ratio(bid * ask_size + ask * bid_size, bid_size + ask_size, (bid + ask) / 2)
        for bid, ask, bid_size, ask_size in zip(
            bids.prices[:2], asks.prices[:2], bids.sizes[:2], asks.sizes[:2], strict=True
        )
    )
    shares = (
        of.ratio(side.sizes[level], volume, 0.0)
        for level in range(BOOK_LEVELS)
        for side, volume in ((bids, buy_volume), (asks, sell_volume))
    )
    return {
        "volume": candles.volume,
        **dict(zip(_SHARES, shares, strict=True)),
        "wap_1": wap_1,
        "wap_2": wap_2,
        "wap_balance": wap_1 - wap_2,
        "buy_spread": abs(bid_1 - bids.prices[-1]),
        "sell_spread": abs(ask_1 - asks.prices[-1]),
        "buy_volume": buy_volume,
        "sell_volume": sell_volume,
        "volume_imbalance": of.ratio(buy_volume - sell_volume, buy_volume + sell_volume, 0.0),
        "price_spread": 2 * (ask_1 - bid_1) / (ask_1 + bid_1),
        "sell_vwap": of.ratio(sell_value, sell_volume, ask_1),
        "buy_vwap": of.ratio(buy_value, buy_volume, bid_1),
        "bid1_price": bid_1,
        "bid2_price": bid_2,
        "ask1_price": ask_1,
        "ask2_price": ask_2,
        **_candle_shape(candles, of),
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
    """(x - mean) / (std + eps) of values with the moments of the windows that they end, which have their shape."""
    deviation: FloatArray = (values - moments.mean) / (moments.std + residue)
    return deviation


def trend_residues(mid: FloatArray) -> FloatArray:
    """eps of each trend of `TRENDED`, (9, T): 1e-12 of the mid for prices, 1e-12 for volume; residue is no movement."""
    residues = np.empty((len(TRENDED), len(mid)))
    residues[:] = _TREND_RESIDUE * mid
    residues[TRENDED.index("volume")] = _TREND_RESIDUE
    return residues


def feature_values(
    now: Mapping[str, Number],
    before: Mapping[str, Number],
    trends: Mapping[str, Number],
    mid: Number,
    *,
    scale: FeatureScale,
) -> list[Number]:
    """The features of a bar, or of each of n, in the order of `FEATURE_NAMES`.

    Args:
        now: `bar_quantities` of the bars.
        before: quantities named in `RETURNED` of the bars right before them.
        trends: `trend` of the quantities named in `TRENDED`.
        mid: mark prices.
        scale: `relative` divides price levels and differences by the mid.
    """
    divided = {name: now[name] / mid for name in _DIVIDED_BY_MID} if scale == "relative" else {}
    returns = {f"log_return_{name}": np.log(now[name] / before[name]) for name in RETURNED}
    values = {**now, **divided, **returns, **{f"{name}_trend_60": trends[name] for name in TRENDED}}
    return [values[name] for name in FEATURE_NAMES]


def _candle_shape(candles: Candles[Number], of: Arithmetic[Number]) -> dict[str, Number]:
    first, high, low, last, _ = candles
    reach = high - low
    shape = {"klen": reach / first}
    moves = {
        "kmid": last - first,
        "kup": high - of.larger(first, last),
        "klow": of.smaller(first, last) - low,
        "ksft": 2 * last - high - low,
    }
    for name, move in moves.items():
        shape |= {name: move / first, f"{name}2": of.ratio(move, reach, 0.0)}
    return shape


def _added(values: Sequence[Number]) -> Number:
    """Their sum, one after the other: a reduction, or `sum`, may take another order or more digits on the way."""
    return reduce(add, values)
