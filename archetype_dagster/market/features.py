"""The 45 features: 36 of a single bar and 9 trends over 60 bars, causal and always finite.

Names and order are the paper's, which gives no formulas; `FEATURE_FORMULAS` is the definition. In
it o, h, l, c are open, high, low and close; bid_i, ask_i the i-th best prices; mid is the mark
price; sums run over the five best levels. An absent level has size 0 and the price above it; an
empty side has size 0 and every price at the mark. Prefix invariance is bit by bit: a row is a
function of its own and the previous 60 bars of its segment.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import mark_prices
from archetype_dagster.market.order_books import number_column, order_books
from archetype_dagster.market.rolling import window_moments
from archetype_dagster.settings import FeatureScale
from archetype_dagster.types import FloatArray, IndexArray

WARMUP_BARS: Final = 60
BOOK_LEVELS: Final = 5
_TREND_RESIDUE: Final = 1e-12

_TRENDED: Final = (
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
_RETURNED: Final = ("bid1_price", "bid2_price", "ask1_price", "ask2_price", "wap_1")
_DIVIDED_BY_MID: Final = ("wap_1", "wap_2", "wap_balance", "buy_spread", "sell_spread", "sell_vwap", "buy_vwap")

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
    **{f"log_return_{name}": f"ln of {name} over {name} one bar before [fraction]" for name in _RETURNED},
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
        for name in _TRENDED
    },
}
FEATURE_NAMES: Final = tuple(FEATURE_FORMULAS)


def compute_features(bars: pl.DataFrame, *, scale: FeatureScale = "relative") -> pl.DataFrame:
    """The 45 features of every bar that has 60 predecessors in its segment.

    Args:
        bars: bars of one pair, oldest first, with at least five book levels. Without a `segment`
            column the timestamps must be evenly spaced; they are then one segment.
        scale: `relative` divides price levels and price differences (`wap_1`, `wap_2`,
            `wap_balance`, `buy_spread`, `sell_spread`, `sell_vwap`, `buy_vwap`) by the mid, which
            makes them comparable over years; `raw` keeps them. Everything else is the same.

    Returns:
        `timestamp` as in the bars and the columns of `FEATURE_NAMES`, Float64, all finite.
        Trends use the population standard deviation; eps is 1e-12 of the mid for prices and 1e-12
        for volume, so float residue in a constant window does not count as movement.

    Raises:
        MarketDataError: unusable values, unsorted times, or unevenly spaced bars without segments.
        ValueError: unknown scale.
    """
    if scale not in ("relative", "raw"):
        raise ValueError(f"scale must be 'relative' or 'raw', got scale={scale!r}")
    rows = feature_rows(bars)
    mid = mark_prices(bars)
    quantities = {**_book_quantities(bars, mid), "volume": number_column(bars, "volume")}
    features = {name: quantities[name][rows] for name in FEATURE_NAMES if name in quantities}
    if scale == "relative":
        features.update({name: features[name] / mid[rows] for name in _DIVIDED_BY_MID})
    for name in _RETURNED:
        level = quantities[name]
        features[f"log_return_{name}"] = np.log(level[rows] / level[rows - 1])
    features.update(_candle_shape(bars, rows))
    for name in _TRENDED:
        residue = _TREND_RESIDUE if name == "volume" else _TREND_RESIDUE * mid[rows]
        features[f"{name}_trend_60"] = _trend(quantities[name], rows, residue)
    columns = [pl.Series(name, features[name], dtype=pl.Float64) for name in FEATURE_NAMES]
    return pl.DataFrame([bars["timestamp"].gather(rows), *columns])


def feature_rows(bars: pl.DataFrame) -> IndexArray:
    """Row numbers of the bars with at least `WARMUP_BARS` predecessors in their segment, int64 (n,).

    Raises:
        MarketDataError: unsorted times, or unevenly spaced bars without a `segment` column.
    """
    if "timestamp" not in bars.columns:
        raise MarketDataError("missing column", field="timestamp")
    steps = np.diff(bars["timestamp"].to_physical().cast(pl.Int64).to_numpy())
    if (steps <= 0).any():
        raise MarketDataError("must grow from bar to bar", row=int(np.argmax(steps <= 0)) + 1, field="timestamp")
    if "segment" in bars.columns:
        breaks = np.diff(bars["segment"].to_numpy()) != 0
    elif len(steps) and (steps != steps[0]).any():
        raise MarketDataError(
            "bars are not evenly spaced and have no segment column: assign segments first",
            row=int(np.argmax(steps != steps[0])) + 1,
            field="timestamp",
        )
    else:
        breaks = np.zeros(len(steps), dtype=np.bool_)
    index = np.arange(bars.height, dtype=np.int64)
    first = np.maximum.accumulate(np.where(np.concatenate([[True], breaks])[: bars.height], index, 0))
    return np.flatnonzero(index - first >= WARMUP_BARS)


def _book_quantities(bars: pl.DataFrame, mid: FloatArray) -> dict[str, FloatArray]:
    bid, ask = order_books(bars, levels=BOOK_LEVELS)
    bids, asks = (np.where(side.empty, mid, side.prices.T) for side in (bid, ask))
    bid_sizes, ask_sizes = bid.sizes.T, ask.sizes.T
    bid_depth, buy_vwap = _depth_and_vwap(bids, bid_sizes)
    ask_depth, sell_vwap = _depth_and_vwap(asks, ask_sizes)
    wap_1, wap_2 = (_wap(bids[i], asks[i], bid_sizes[i], ask_sizes[i]) for i in (0, 1))
    return {
        **{f"bid{i + 1}_size_n": _ratio(bid_sizes[i], bid_depth) for i in range(BOOK_LEVELS)},
        **{f"ask{i + 1}_size_n": _ratio(ask_sizes[i], ask_depth) for i in range(BOOK_LEVELS)},
        "wap_1": wap_1,
        "wap_2": wap_2,
        "wap_balance": wap_1 - wap_2,
        "buy_spread": np.abs(bids[0] - bids[-1]),
        "sell_spread": np.abs(asks[0] - asks[-1]),
        "buy_volume": bid_depth,
        "sell_volume": ask_depth,
        "volume_imbalance": _ratio(bid_depth - ask_depth, bid_depth + ask_depth),
        "price_spread": 2 * (asks[0] - bids[0]) / (asks[0] + bids[0]),
        "sell_vwap": sell_vwap,
        "buy_vwap": buy_vwap,
        **{f"bid{i + 1}_price": bids[i] for i in (0, 1)},
        **{f"ask{i + 1}_price": asks[i] for i in (0, 1)},
    }


def _depth_and_vwap(prices: FloatArray, sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
    depth, notional = np.zeros(prices.shape[1]), np.zeros(prices.shape[1])
    for price, size in zip(prices, sizes, strict=True):
        depth += size
        notional += price * size
    return depth, _ratio(notional, depth, otherwise=prices[0])


def _wap(bid: FloatArray, ask: FloatArray, bid_size: FloatArray, ask_size: FloatArray) -> FloatArray:
    return _ratio(bid * ask_size + ask * bid_size, bid_size + ask_size, otherwise=0.5 * (bid + ask))


def _candle_shape(bars: pl.DataFrame, rows: IndexArray) -> dict[str, FloatArray]:
    first, high, low, last = (
        number_column(bars, name, positive=True)[rows] for name in ("open", "high", "low", "close")
    )
    body, reach, shift = last - first, high - low, 2 * last - high - low
    upper, lower = high - np.maximum(first, last), np.minimum(first, last) - low
    return {
        "kmid": body / first,
        "klen": reach / first,
        "kmid2": _ratio(body, reach),
        "kup": upper / first,
        "kup2": _ratio(upper, reach),
        "klow": lower / first,
        "klow2": _ratio(lower, reach),
        "ksft": shift / first,
        "ksft2": _ratio(shift, reach),
    }


def _trend(values: FloatArray, rows: IndexArray, residue: float | FloatArray) -> FloatArray:
    if not rows.size:
        return np.empty(0)
    moments = window_moments(values, WARMUP_BARS)
    window = rows - (WARMUP_BARS - 1)
    return (values[rows] - moments.mean[window]) / (moments.std[window] + residue)


def _ratio(numerator: FloatArray, denominator: FloatArray, *, otherwise: float | FloatArray = 0.0) -> FloatArray:
    usable = denominator > 0
    return np.where(usable, numerator / np.where(usable, denominator, 1.0), otherwise)
