"""PPO on one spot pair: 50,000 steps on the embedded market or on your own bars, judged on bars it never saw.

    python examples/train_spot_single_leg.py
    python examples/train_spot_single_leg.py --source ETHUSDT.parquet --pair ETH
    tensorboard --logdir result/examples

Beside the trained policy stand one that stays flat, one that acts at random and one that holds; and PPO trained
and judged in the same way on the same market with its returns in random order, which should earn nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from _ppo import NUM_ENVS, HeldOut, drawn, greedy, held_out, log_results, print_results, shuffled, trained

from archetype_dagster.envs import BacktestEnv, BacktestVectorEnv
from archetype_dagster.market import compute_features, load_bars
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import EnvironmentSettings, MarketSettings, SyntheticMarketSettings

TRAINING_SHARE = 0.7
SHOWN = EnvironmentSettings(features=True, actions="discrete")
WHOLE = SHOWN.model_copy(update={"starts": "first", "episode_bars": None})


def embedded_market(days: int) -> MarketSettings:
    """Some days of the embedded market."""
    start = datetime(2022, 1, 1, 0, 10, tzinfo=UTC)
    return MarketSettings(seed=1, synthetic=SyntheticMarketSettings(start=start, end=start + timedelta(days=days)))


def learned(bars: pl.DataFrame, options: argparse.Namespace, name: str) -> dict[str, HeldOut]:
    """Train on the first bars, judge on the rest."""
    cut = int(TRAINING_SHARE * bars.height)
    training, rest = bars[:cut], bars[cut:]
    scaler = FeatureScaler.fit(compute_features(training).select(FEATURE_NAMES).to_numpy())

    market = BacktestVectorEnv(NUM_ENVS, training, pair=options.pair, settings=SHOWN, scaler=scaler)
    model = trained(market, steps=options.steps, seed=options.seed, log=options.out, name=name)
    env = BacktestEnv(rest, pair=options.pair, settings=WHOLE, scaler=scaler)
    results = {name: held_out(env, greedy(model), seed=options.seed)}
    if name == "ppo":
        fixed = {"flat": 1, "hold": 2}
        results |= {rule: held_out(env, lambda _, a=a: np.int64(a), seed=options.seed) for rule, a in fixed.items()}
        results["random"] = held_out(env, drawn(env, options.seed), seed=options.seed)
    print_results(results, env)
    log_results(model, results)
    return results


def main(arguments: Sequence[str] | None = None) -> dict[str, HeldOut]:
    """Train, judge and compare; returns the held-out results by policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pair", default="ETH")
    parser.add_argument("--source", help="what load_bars takes; the embedded market by default")
    parser.add_argument("--days", type=int, default=720, help="of the embedded market")
    parser.add_argument("--out", type=Path, default=Path("result/examples/spot_single_leg"))
    options = parser.parse_args(arguments)
    bars = load_bars(options.source or embedded_market(options.days), options.pair)
    results = learned(bars, options, "ppo")
    [control] = shuffled([bars], options.seed)
    return results | learned(control, options, "ppo on shuffled returns")


if __name__ == "__main__":
    main()
