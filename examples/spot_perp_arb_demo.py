"""PPO on a spot pair and its perpetual swap at once: 100,000 steps, with funding, judged on bars it never saw.

    python examples/spot_perp_arb_demo.py --data FOLDER
    tensorboard --logdir result/examples

FOLDER holds 5-minute candles and funding as spot_5m/BTCUSDT.parquet, perp/BTCUSDT_perp_5m.parquet and
perp/BTCUSDT_funding_8h.parquet; the books are modelled. Without it the embedded market and its funding are used.
An action is short, flat or long in each leg. Beside the trained policy stand one that stays flat, one
that acts at random and one that holds spot against the swap; and PPO trained and judged in the same way on the
same legs with their returns in random order. Funding stays as it was: what holding earns by it the control earns too.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from _ppo import NUM_ENVS, HeldOut, drawn, greedy, held_out, log_results, print_results, shuffled, trained

from archetype_dagster.backtest.engine.instruments import spot_instrument, swap_instrument
from archetype_dagster.envs import MultiLegBacktestEnv, MultiLegBacktestVectorEnv
from archetype_dagster.envs.sources import embedded_legs
from archetype_dagster.market import load_bars
from archetype_dagster.settings import EnvironmentSettings, MarketSettings, SyntheticMarketSettings

TRAINING_SHARE = 0.7
SHOWN = EnvironmentSettings(lookback_bars=4, actions="discrete")
WHOLE = SHOWN.model_copy(update={"starts": "first", "episode_bars": None})
FLAT = np.array([1, 1])
LONG_SPOT_SHORT_SWAP = np.array([2, 0])


def real_legs(folder: Path, base: str, start: datetime, end: datetime) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """Bars of spot and swap with modelled books, and the swap's settlements."""
    files = (folder / f"spot_5m/{base}USDT.parquet", folder / f"perp/{base}USDT_perp_5m.parquet")
    markets = [MarketSettings(source="candles", path=file, bar_minutes=5) for file in files]
    bars = [load_bars(market, base, start=start, end=end) for market in markets]
    common = bars[0].select("timestamp").join(bars[1].select("timestamp"), on="timestamp").to_series().implode()
    funding = pl.read_parquet(folder / f"perp/{base}USDT_funding_8h.parquet")
    return [table.filter(pl.col("timestamp").is_in(common)) for table in bars], funding


def loaded(data: Path | None, base: str, days: int) -> tuple[list[pl.DataFrame], dict[str, pl.DataFrame]]:
    """Bars of spot and swap and the funding, of the last `days` before September 2024; embedded where no `data` is."""
    end = datetime(2024, 9, 1, tzinfo=UTC)
    start = end - timedelta(days=days)
    swap = swap_instrument(base, "USDT")
    if data is None:
        market = MarketSettings(synthetic=SyntheticMarketSettings(start=start, end=end))
        return embedded_legs([spot_instrument(base, "USDT"), swap], market)
    bars, settlements = real_legs(data, base, start, end)
    return bars, {swap.symbol: settlements}


def learned(
    bars: list[pl.DataFrame], funding: Mapping[str, pl.DataFrame], options: argparse.Namespace, name: str
) -> dict[str, HeldOut]:
    """Train on the first bars of both legs, judge on the rest."""
    legs = [
        (spot_instrument(options.base, "USDT"), options.size),
        (swap_instrument(options.base, "USDT"), options.size),
    ]
    cut = int(TRAINING_SHARE * bars[0].height)
    training, rest = [table[:cut] for table in bars], [table[cut:] for table in bars]

    market = MultiLegBacktestVectorEnv(NUM_ENVS, legs, data=training, funding=funding, settings=SHOWN)
    model = trained(market, steps=options.steps, seed=options.seed, log=options.out, name=name)
    env = MultiLegBacktestEnv(legs, data=rest, funding=funding, settings=WHOLE)
    results = {name: held_out(env, greedy(model), seed=options.seed)}
    if name == "ppo":
        results["flat"] = held_out(env, lambda _: FLAT, seed=options.seed)
        results["hold spot against swap"] = held_out(env, lambda _: LONG_SPOT_SHORT_SWAP, seed=options.seed)
        results["random"] = held_out(env, drawn(env, options.seed), seed=options.seed)
    print_results(results, env)
    log_results(model, results)
    return results


def main(arguments: Sequence[str] | None = None) -> dict[str, HeldOut]:
    """Train, judge and compare; returns the held-out results by policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", default="BTC")
    parser.add_argument("--size", type=float, default=1.0, help="base units of each leg at an action of one")
    parser.add_argument("--data", type=Path, help="folder of real candles and funding")
    parser.add_argument("--days", type=int, default=365, help="of the data, the last before September 2024")
    parser.add_argument("--out", type=Path, default=Path("result/examples/spot_perp_arb"))
    options = parser.parse_args(arguments)
    bars, funding = loaded(options.data, options.base, options.days)
    results = learned(bars, funding, options, "ppo")
    return results | learned(shuffled(bars, options.seed), funding, options, "ppo on shuffled returns")


if __name__ == "__main__":
    main()
