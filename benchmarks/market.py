"""Trade costs against a plain loop; features at once, streamed and by one call a bar; on the embedded market.

Run with `python benchmarks/market.py`; all ways must give the same values, or the run stops.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import polars as pl

from archetype_dagster.market import compute_features, trade_costs
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.streaming import FeatureStream
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.settings import load_settings

COMMISSION_RATE = 0.0002
INTEGRATION_STEPS = 2000


def loop_costs(bars: pl.DataFrame, max_position: float) -> np.ndarray:
    """Trade costs one bar, change and level at a time; the curve is integrated numerically."""
    curve, costs = ImpactCurve.default(), np.zeros((bars.height, 3, 3))
    for t, bar in enumerate(bars.iter_rows(named=True)):
        mark = (bar["bid1_price"] + bar["ask1_price"]) / 2
        for before in range(3):
            for after in range(3):
                quantity = abs(after - before) * max_position
                side, sign = ("ask", 1) if after > before else ("bid", -1)
                left, loss, level = quantity, 0.0, 1
                while left > 0 and f"{side}{level}_price" in bar:
                    taken = min(left, bar[f"{side}{level}_size"])
                    loss += taken * sign * (bar[f"{side}{level}_price"] - mark)
                    left, level = left - taken, level + 1
                if left > 0:
                    worst = sign * (bar[f"{side}{level - 1}_price"] - mark) / mark
                    middle = (quantity - left) + left * (np.arange(INTEGRATION_STEPS) + 0.5) / INTEGRATION_STEPS
                    loss += left * mark * np.maximum(worst, curve.distance(middle * mark) * 1e-4).mean()
                costs[t, before, after] = loss + COMMISSION_RATE * quantity * mark
    return costs


def loop_features(bars: pl.DataFrame) -> np.ndarray:
    """Features one bar at a time, each from its own window of bars, as a live system computes them."""
    windows = (bars[row - WARMUP_BARS : row + 1] for row in range(WARMUP_BARS, bars.height))
    return np.concatenate([compute_features(window).select(FEATURE_NAMES).to_numpy() for window in windows])


def streamed_features(bars: pl.DataFrame) -> np.ndarray:
    """Features bar by bar as deployment computes them."""
    stream = FeatureStream()
    rows = (stream.push(bar) for bar in bars.iter_rows(named=True))
    return np.array([row for row in rows if row is not None])


def report(name: str, rows: int, repeats: int, run: Callable[[], object]) -> float:
    """Print and return the rows per second of the fastest of `repeats` runs."""
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    print(f"{name:28s} {rows:8,d} rows  {min(seconds):8.3f} s  {rows / min(seconds):12,.0f} rows/s")
    return rows / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop-bars", type=int, default=400)
    arguments = parser.parse_args()
    settings = load_settings("smoke")
    pair = settings.pair("BTC")
    bars = synthetic_bars(settings.market, pair, pair_name="BTC", seed=settings.seed)
    short = bars[: arguments.loop_bars]

    def costs(part: pl.DataFrame) -> np.ndarray:
        return trade_costs(part, max_position=pair.max_position, commission_rate=COMMISSION_RATE)

    np.testing.assert_allclose(loop_costs(short, pair.max_position), costs(short), rtol=1e-4)
    np.testing.assert_array_equal(loop_features(short), compute_features(short).select(FEATURE_NAMES).to_numpy())
    np.testing.assert_allclose(streamed_features(short), loop_features(short), rtol=1e-9)
    for name, loop_name, whole, loop in (
        ("trade costs", "trade costs, plain loop", costs, lambda: loop_costs(short, pair.max_position)),
        ("features", "features, one call a bar", compute_features, lambda: loop_features(short)),
        ("features", "features, streamed", compute_features, lambda: streamed_features(short)),
    ):
        fast = report(name, bars.height, arguments.repeats, lambda whole=whole: whole(bars))
        slow = report(loop_name, short.height, 1, loop)
        print(f"{'':28s} {fast / slow:,.0f} times as many")


if __name__ == "__main__":
    main()
