"""The embedded market: seeded, with a small edge that a causal learner can find and a shuffle removes.

Regimes of rising, falling and mean-reverting price follow one another; volatility clusters; the
book's imbalance at a bar's end is correlated with the drift of the next bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import assign_segments, bar_column_names
from archetype_dagster.market.ladder import LadderShape, ladder_frame, round_to_tick
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import MarketSettings, PairSettings, SyntheticMarketSettings
from archetype_dagster.types import BoolArray, FloatArray, IndexArray

_BPS: Final = 1e-4
_VOLATILITY_MEMORY: Final = 0.98
_VOLATILITY_DISPERSION: Final = 0.35
_VOLUME_IN_POSITIONS: Final = 25.0
_VOLUME_DISPERSION: Final = 0.4
_SIGNAL_MEMORY: Final = 0.9
_IMBALANCE_TILT: Final = 0.4
_LEVEL_DISPERSION: Final = 0.25
_DEPTH_IN_POSITIONS: Final = 3.0
_SPREAD_BPS: Final = 0.05
_LEVEL_STEP_BPS: Final = 0.1
# Place as a share of the span, and length in bars.
_OUTAGES: Final = ((0.37, 27), (0.88, 9))
_SHORTEST_SPAN_WITH_OUTAGES: Final = 1_000


@dataclass(frozen=True)
class _Moves:
    """What happens inside each bar, float64 (T,); the control permutes these rows together.

    Attributes:
        returns: log return over the bar.
        volatility: standard deviation of the return's noise.
        taker_share: share of the volume that takers bought.
        volume: base units.
        above: uniform behind the bar's high.
        below: uniform behind the bar's low.
    """

    returns: FloatArray
    volatility: FloatArray
    taker_share: FloatArray
    volume: FloatArray
    above: FloatArray
    below: FloatArray


def synthetic_bars(settings: MarketSettings, pair: PairSettings, *, pair_name: str, seed: int) -> pl.DataFrame:
    """Bars of the embedded market over its whole span, in the bars schema with `segment`.

    Everything depends on `seed` and `pair_name` alone. Rising and falling regimes come in equal
    number, so that holding earns nothing on average. A span of 1,000 bars or more has two outages, in
    which the price moves on and no bar is written. One side of the book holds 3 m on average, more where
    the tick is coarse, so a change by m finds its size there and one by 2 m nearly always.

    With `shuffle_returns` the bars' returns, ranges and volumes are put in random order while the
    book's imbalances stay in theirs: the same values, and none tells anything about another.

    Raises:
        MarketDataError: no bar ends inside the span, or the price has fallen too low for the tick.
    """
    market = settings.synthetic
    rng = numpy_generator(seed, "synthetic_market", pair_name)
    ends = _bar_ends(market, settings.bar_minutes)
    rows = len(ends)
    regime, direction = _regimes(rows, market.regime_bars, rng)
    moves = _moves(regime, direction, market, pair, rng)
    # The imbalance at the end of a bar goes with the drift of the next one.
    signal = _signal(np.append(direction[1:], direction[-1]), market.signal_strength, rng)
    if market.shuffle_returns:
        # A stream of its own, so that the book is the same with and without.
        order = numpy_generator(seed, "synthetic_market", pair_name, "shuffle").permutation(rows)
        moves = _permuted(moves, order)
    bars = _candles(moves, pair)
    book = _book(bars["close"].to_numpy(), signal, settings.book_levels, pair, rng)
    bars = bars.with_columns(
        *book.get_columns(),
        timestamp=pl.Series(ends).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
        book_source=pl.lit("modelled"),
    ).filter(~_outage(rows))
    return assign_segments(bars, bar_minutes=settings.bar_minutes).select(bar_column_names(settings.book_levels))


def _bar_ends(market: SyntheticMarketSettings, bar_minutes: int) -> IndexArray:
    """Bar ends in [start, end), microseconds since 1970."""
    start, end = (int(_utc(moment).timestamp()) * 1_000_000 for moment in (market.start, market.end))
    ends = np.arange(start, end, bar_minutes * 60_000_000, dtype=np.int64)
    if not len(ends):
        raise MarketDataError(f"the synthetic market must end after it starts, got {market.start} to {market.end}")
    return ends


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _regimes(rows: int, mean_bars: int, rng: np.random.Generator) -> tuple[IndexArray, FloatArray]:
    """Number of the regime and its direction (+1 rising, -1 falling, 0 reverting) at each bar, (T,) each.

    Lengths are uniform within half the mean of it; each three regimes hold one of each kind, in random order.
    """
    shortest = max(1, mean_bars // 2)
    triples = rows // (3 * shortest) + 1
    kinds = rng.permuted(np.tile([1.0, -1.0, 0.0], (triples, 1)), axis=1).ravel()
    lengths = rng.integers(shortest, 2 * mean_bars - shortest, size=len(kinds), endpoint=True)
    regime = np.repeat(np.arange(len(kinds)), lengths)[:rows]
    return regime, kinds[regime]


def _moves(
    regime: IndexArray,
    direction: FloatArray,
    market: SyntheticMarketSettings,
    pair: PairSettings,
    rng: np.random.Generator,
) -> _Moves:
    rows = len(regime)
    excess = _VOLATILITY_DISPERSION * _autoregression(rng.standard_normal(rows), _VOLATILITY_MEMORY)
    volatility = market.volatility_bps * _BPS * np.exp(excess - _VOLATILITY_DISPERSION**2)
    noise = rng.standard_normal(rows)
    shocks = volatility * noise
    returns = np.where(
        direction == 0,
        _reverting_returns(shocks, regime, market.reversion),
        shocks + market.drift_bps * _BPS * direction,
    )
    volume_noise = _VOLUME_DISPERSION * rng.standard_normal(rows)
    volume = _VOLUME_IN_POSITIONS * pair.max_position * np.exp(excess + volume_noise)
    taker_share = 1 / (1 + np.exp(-0.4 * noise - 0.2 * rng.standard_normal(rows)))
    # Never zero, whose logarithm would be infinite.
    above, below = 1 - rng.random((2, rows))
    return _Moves(returns, volatility, taker_share, volume, above, below)


def _reverting_returns(shocks: FloatArray, regime: IndexArray, pull: float) -> FloatArray:
    """Returns of a log price drawn back to where its regime began: x_t = (1 - pull) x_(t-1) + shock_t."""
    if pull == 0:
        return shocks
    begins = np.diff(regime, prepend=-1) != 0
    # y_t = (1 - a) y_(t-1) + a u_t with u = shock / a, except for the first, which is taken as it is.
    inputs = pl.DataFrame({"regime": regime, "u": np.where(begins, shocks, shocks / pull)})
    deviation = inputs.select(pl.col("u").ewm_mean(alpha=pull, adjust=False).over("regime")).to_series().to_numpy()
    returns: FloatArray = np.where(begins, deviation, np.diff(deviation, prepend=0.0))
    return returns


def _signal(direction: FloatArray, strength: float, rng: np.random.Generator) -> FloatArray:
    """Unit-variance series whose correlation with the direction is `strength`, (T,)."""
    noise = _autoregression(rng.standard_normal(len(direction)), _SIGNAL_MEMORY)
    scale = np.sqrt(2 / 3)  # standard deviation of three equally frequent directions
    signal: FloatArray = strength * direction / scale + np.sqrt(1 - strength**2) * noise
    return signal


def _autoregression(noise: FloatArray, memory: float) -> FloatArray:
    """Stationary series of unit variance, x_t = memory x_(t-1) + sqrt(1 - memory^2) noise_t."""
    inputs = noise * np.sqrt(1 - memory**2) / (1 - memory)
    inputs[0] = noise[0]
    series: FloatArray = pl.Series(inputs).ewm_mean(alpha=1 - memory, adjust=False).to_numpy()
    return series


def _permuted(moves: _Moves, order: IndexArray) -> _Moves:
    return _Moves(**{name: values[order] for name, values in vars(moves).items()})


def _candles(moves: _Moves, pair: PairSettings) -> pl.DataFrame:
    end = np.log(pair.synthetic_price) + np.cumsum(moves.returns)
    begin = end - moves.returns
    # Extremes of a Brownian bridge between the bar's ends, drawn by inversion.
    reach = [np.sqrt(moves.returns**2 - 2 * moves.volatility**2 * np.log(u)) for u in (moves.above, moves.below)]
    prices = {
        "open": begin,
        "high": (begin + end + reach[0]) / 2,
        "low": (begin + end - reach[1]) / 2,
        "close": end,
    }
    return pl.DataFrame(
        {name: round_to_tick(np.exp(value), pair.tick_size) for name, value in prices.items()}
        | {"volume": moves.volume, "taker_buy_volume": moves.volume * moves.taker_share}
    )


def _book(
    close: FloatArray, signal: FloatArray, levels: int, pair: PairSettings, rng: np.random.Generator
) -> pl.DataFrame:
    shape = LadderShape(spread=_SPREAD_BPS * _BPS * close, level_step=_LEVEL_STEP_BPS * _BPS * close)
    depth = _DEPTH_IN_POSITIONS * pair.max_position / levels * shape.steps_per_tick(pair.tick_size)
    bid_sizes, ask_sizes = (
        depth * np.exp(_LEVEL_DISPERSION * rng.standard_normal((levels, len(close))) + tilt * signal)
        for tilt in (_IMBALANCE_TILT, -_IMBALANCE_TILT)
    )
    return ladder_frame(close, shape, bid_sizes, ask_sizes, tick_size=pair.tick_size)


def _outage(rows: int) -> pl.Series:
    missing: BoolArray = np.zeros(rows, dtype=np.bool_)
    if rows >= _SHORTEST_SPAN_WITH_OUTAGES:
        for place, length in _OUTAGES:
            first = int(place * rows)
            missing[first : first + length] = True
    return pl.Series(missing)
