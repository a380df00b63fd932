"""Environment steps per second, one copy at a time and thousands per call, beside Gymnasium's own CartPole.

Run with `python benchmarks/environments.py`; nothing else should run meanwhile. Actions are drawn beforehand,
episodes restart on their own, and each figure is the best of a few repeats on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from _machine import machine_line

from archetype_dagster.backtest.engine.instruments import spot_instrument, swap_instrument
from archetype_dagster.envs import (
    ArchetypeSelectionEnv,
    BacktestEnv,
    BacktestVectorEnv,
    BatchedTradingEnv,
    MultiLegBacktestEnv,
    MultiLegBacktestVectorEnv,
    RefinementEnv,
)
from archetype_dagster.envs.embedded import embedded_codebook, embedded_dataset
from archetype_dagster.settings import EnvironmentSettings

LEGS = [(spot_instrument("BTC", "USDT"), 1.0), (swap_instrument("BTC", "USDT"), 1.0)]
SHOWN = EnvironmentSettings(features=True)


def fastest(work: Callable[[], Any], steps: int, repeats: int) -> float:
    """Steps per second of the best repeat; the first, which compiles, is left out."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return steps / min(seconds)


def one_by_one(env: gym.Env[Any, Any], steps: int, repeats: int) -> float:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(256)]
    env.reset(seed=0)

    def play() -> None:
        for count in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[count % 256])
            if terminated or truncated:
                env.reset()

    return fastest(play, steps, repeats)


def many_at_once(env: gym.vector.VectorEnv[Any, Any, Any], calls: int, repeats: int) -> float:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(8)]
    env.reset(seed=0)
    return fastest(lambda: [env.step(actions[call % 8]) for call in range(calls)], calls * env.num_envs, repeats)


def on_the_tables(env: BatchedTradingEnv, calls: int, repeats: int) -> tuple[float, float]:
    """With observations written into one array, and without any."""
    actions = np.random.default_rng(0).integers(3, size=(8, env.num_envs))
    out = env.reset()
    steps = calls * env.num_envs
    observed = fastest(lambda: [env.step(actions[call % 8], out=out) for call in range(calls)], steps, repeats)
    return observed, fastest(lambda: [env.advance(actions[call % 8]) for call in range(calls)], steps, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of a single environment in a repeat")
    parser.add_argument("--calls", type=int, default=500, help="calls of a batched environment in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(machine_line("numpy", "numba", "gymnasium"))
    dataset = embedded_dataset()
    few = max(1, options.steps // 100)
    singles: list[tuple[str, gym.Env[Any, Any], int]] = [
        ("CartPole-v1 (Gymnasium)", gym.make("CartPole-v1").unwrapped, options.steps),
        ("BacktestEnv", BacktestEnv(), options.steps),
        ("BacktestEnv, 45 features", BacktestEnv(settings=SHOWN), options.steps),
        ("MultiLegBacktestEnv, 2 legs", MultiLegBacktestEnv(LEGS), options.steps),
        ("RefinementEnv", RefinementEnv(dataset), options.steps // 10),
        ("ArchetypeSelectionEnv (a horizon a step)", ArchetypeSelectionEnv(dataset, embedded_codebook(dataset)), few),
    ]
    for name, env, steps in singles:
        print(f"{name:58} {one_by_one(env, steps, options.repeats):14,.0f} steps/s")

    copies, calls, repeats = options.copies, options.calls, options.repeats
    cart_poles = gym.make_vec("CartPole-v1", num_envs=copies, vectorization_mode="vector_entry_point")
    batched: list[tuple[str, gym.vector.VectorEnv[Any, Any, Any]]] = [
        ("CartPole-v1 (Gymnasium's own vector form)", cart_poles),
        ("BacktestVectorEnv", BacktestVectorEnv(copies)),
        ("BacktestVectorEnv, 45 features", BacktestVectorEnv(copies, settings=SHOWN)),
        ("MultiLegBacktestVectorEnv, 2 legs", MultiLegBacktestVectorEnv(copies, LEGS)),
    ]
    print(f"{copies} copies a call")
    for name, vector in batched:
        print(f"{name:58} {many_at_once(vector, calls, repeats):14,.0f} steps/s")
    core = BatchedTradingEnv(dataset, num_envs=copies, episode_bars=288, generator=np.random.default_rng(0))
    observed, blind = on_the_tables(core, calls, repeats)
    print(f"{'BatchedTradingEnv, 45 features':58} {observed:14,.0f} steps/s")
    print(f"{'BatchedTradingEnv, rows instead of observations':58} {blind:14,.0f} steps/s")


if __name__ == "__main__":
    main()
