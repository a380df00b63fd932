"""Planner and adaptations against the plain ways of computing them, timed side by side in one run.

Run with `python benchmarks/planner.py`; every contender must give the same values, or the run stops.
"""

from __future__ import annotations

import argparse
import itertools
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from archetype_dagster.planning import adaptation_returns, best_plans, horizon_rewards, legal_override_mask
from archetype_dagster.types import FloatArray

MAX_POSITION = 8.0
PYTHON_HORIZONS = 200
REPLAYED_HORIZONS = 2000


def market(horizons: int, bars: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Random-walk prices (B, h + 1) and costs (B, h, 3, 3) of a few basis points of the traded notional."""
    rng = np.random.default_rng(seed)
    mark = 30_000 * np.exp(rng.normal(0, 0.0018, (horizons, bars + 1)).cumsum(axis=1))
    change = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    rate = rng.uniform(2e-4, 5e-4, (horizons, bars, 1, 1))
    return mark, MAX_POSITION * rate * change * mark[:, :-1, np.newaxis, np.newaxis]


def numpy_recursion(mark: FloatArray, costs: FloatArray) -> FloatArray:
    """Algorithm 1's V[t, i, c], one bar at a time, vectorised over the horizons."""
    value = np.zeros((len(mark), 3, 2))
    for t in reversed(range(costs.shape[1])):
        move = MAX_POSITION * (mark[:, t + 1] - mark[:, t])
        reward = move[:, np.newaxis, np.newaxis] * np.array([-1.0, 0.0, 1.0]) - costs[:, t]
        later = value.copy()
        for i in range(3):
            held = reward[:, i, i, np.newaxis] + later[:, i]
            value[:, i] = held
            if t < costs.shape[1] - 1:
                for j in {0, 1, 2} - {i}:
                    value[:, i, 0] = np.maximum(value[:, i, 0], reward[:, i, j] + later[:, j, 1])
    return value[:, 1, 0]


def python_recursion(mark: Any, costs: Any) -> FloatArray:
    """The same recursion for one horizon after the other in plain Python."""
    values = []
    for p, cost in zip(mark.tolist(), costs.tolist(), strict=True):
        value = [[0.0, 0.0] for _ in range(3)]
        for t in reversed(range(len(cost))):
            later, value = value, [[0.0, 0.0] for _ in range(3)]
            for i, used in itertools.product(range(3), range(2)):
                value[i][used] = max(
                    MAX_POSITION * (j - 1) * (p[t + 1] - p[t]) - cost[t][i][j] + later[j][used + (i != j)]
                    for j in range(3)
                    if i == j or (used == 0 and t < len(cost) - 1)
                )
        values.append(value[1][0])
    return np.array(values)


def replay_every_override(base: Any, mark: FloatArray, costs: FloatArray) -> FloatArray:
    """Returns (B, h, 2) of all single-step overrides, each replayed over the whole horizon."""
    returns = np.full((*base.shape, 2), -np.inf)
    legal = legal_override_mask(base)
    for tau, direction in itertools.product(range(base.shape[1]), range(2)):
        final = base.copy()
        final[:, tau] = 2 * direction
        total = horizon_rewards(final, mark, costs, max_position=MAX_POSITION).sum(axis=1)
        returns[:, tau, direction] = np.where(legal[:, tau, direction], total, -np.inf)
    return returns


def timed(work: Callable[[], Any], *, repeats: int = 3) -> tuple[Any, float]:
    """Result and the shortest of a few wall times in seconds."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizons", type=int, default=30_000)
    parser.add_argument("--bars", type=int, default=72)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mark, costs = market(options.horizons, options.bars, options.seed)
    print(f"{options.horizons} horizons of {options.bars} bars, seed {options.seed}")

    def row(name: str, horizons: int, seconds: float, fastest: float) -> None:
        per_horizon = seconds / horizons
        print(f"{name:44} {seconds:8.3f} s {horizons / seconds:12,.0f} horizons/s {per_horizon / fastest:8.1f} x")

    def plan() -> Any:
        return best_plans(mark, costs, max_position=MAX_POSITION, gamma=1.0, trade_constraint="single_change")

    plans, planning = timed(plan)
    recursion, numpy_time = timed(lambda: numpy_recursion(mark, costs), repeats=1)
    small = slice(PYTHON_HORIZONS)
    python, python_time = timed(lambda: python_recursion(mark[small], costs[small]), repeats=1)
    np.testing.assert_allclose(recursion, plans.values, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(python, plans.values[small], rtol=1e-9, atol=1e-6)
    unit = planning / len(mark)
    row("plan: suffix sums", len(mark), planning, unit)
    row("plan: NumPy recursion over bars", len(mark), numpy_time, unit)
    row("plan: Python recursion", len(python), python_time, unit)

    table, table_time = timed(lambda: adaptation_returns(plans.actions, mark, costs, max_position=MAX_POSITION))
    few = slice(REPLAYED_HORIZONS)
    replayed, replay_time = timed(lambda: replay_every_override(plans.actions[few], mark[few], costs[few]), repeats=1)
    np.testing.assert_allclose(replayed, table.returns[few], rtol=1e-9, atol=1e-6)
    unit = table_time / len(mark)
    row("adaptations: closed form", len(mark), table_time, unit)
    row("adaptations: NumPy replay of every override", len(replayed), replay_time, unit)

    tracemalloc.start()
    plan()
    _, peak = tracemalloc.get_traced_memory()
    print(f"planning allocates at most {peak / 2**20:.1f} MiB beside the {costs.nbytes / 2**20:.0f} MiB of costs")


if __name__ == "__main__":
    main()
