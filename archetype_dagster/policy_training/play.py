"""Episodes played side by side: what was decided on every bar, and what each episode came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import polars as pl

from archetype_dagster.envs import HistoryEnv
from archetype_dagster.seeding import derive_seed, numpy_generator
from archetype_dagster.settings.policy_specs import (
    MarketMakingTask,
    OptimalExecutionTask,
    PolicySpec,
    PortfolioAllocationTask,
    StockTradingTask,
)
from archetype_dagster.types import FloatArray, IndexArray, StateArray

Decide = Callable[[StateArray, Sequence[HistoryEnv]], np.ndarray]
"""Observations float32 (N, L F) of N environments -> their actions (N, A) from -1 to 1."""
Task = StockTradingTask | PortfolioAllocationTask | MarketMakingTask | OptimalExecutionTask
RANDOM: Final = "random"
_BPS: Final = 1e4


@dataclass(frozen=True)
class Played:
    """Episodes of one policy.

    Attributes:
        episodes: a row each: `episode`, `began` (bar end), `bars`, `ended`, `reward` (sum) and what the task counts.
        decisions: a row for each bar of each: `episode`, `timestamp` (when it was decided), `action_0` .., `reward`.
    """

    episodes: pl.DataFrame
    decisions: pl.DataFrame

    @property
    def mean_reward(self) -> float:
        """Mean over the episodes of their rewards' sum."""
        return float(self.episodes["reward"].to_numpy().mean())


def even_starts(env: HistoryEnv, task: Task, episodes: int) -> IndexArray:
    """Rows of the window that its episodes begin on, evenly spread from the first to the last possible one."""
    rows = env.rows_that_begin(episode_length(task))
    return rows[np.linspace(0, len(rows) - 1, episodes).round().astype(np.int64)]


def episode_length(task: Task) -> int | None:
    """Bars that an episode may last; None where the data alone ends it."""
    return task.horizon_bars if isinstance(task, OptimalExecutionTask) else task.episode_bars


def play(decide: Decide, env: HistoryEnv, spec: PolicySpec, starts: IndexArray) -> Played:
    """Play an episode from each of the starts; whoever decides meets the same draws in it.

    Args:
        decide: all N episodes' actions at once; those of episodes that are over are ignored.
        env: of the window; it is left as it is.
        spec: the task and the seed.
        starts: rows (N,).
    """
    envs = [copy(env) for _ in starts]
    seed = derive_seed(spec.seed, "play")
    begun = [one.reset(seed=seed + n, options={"start": int(starts[n])}) for n, one in enumerate(envs)]
    observations = np.stack([observation for observation, _ in begun])
    told: list[list[dict[str, Any]]] = [[info] for _, info in begun]
    rows: list[dict[str, Any]] = []
    rewards = np.zeros(len(envs))
    over = np.zeros(len(envs), dtype=np.bool_)
    while not over.all():
        actions = decide(observations, envs)
        for n in np.flatnonzero(~over).tolist():
            observations[n], reward, terminated, truncated, info = envs[n].step(actions[n])
            decided = {f"action_{number}": float(part) for number, part in enumerate(actions[n])}
            rows.append({"episode": n, "timestamp": _utc(told[n][-1]), **decided, "reward": reward})
            told[n].append(info)
            rewards[n] += reward
            over[n] = terminated or truncated
    episodes = [
        {
            "episode": n,
            "began": _utc(infos[0]),
            "bars": len(infos) - 1,
            "ended": infos[-1]["ended"] or "time",
            "reward": rewards[n],
            **_counted(spec.environment, infos),
        }
        for n, infos in enumerate(told)
    ]
    return Played(pl.DataFrame(episodes), pl.DataFrame(rows).sort("episode", maintain_order=True))


def random_decisions(env: HistoryEnv, seed: int) -> Decide:
    """Actions drawn uniformly from the whole space."""
    generator, size = numpy_generator(seed, "play", RANDOM), env.action_space.shape
    return lambda observations, _: generator.uniform(-1.0, 1.0, (len(observations), *(size or ())))


def built_in_decisions(name: str) -> Decide:
    """Actions of a policy that the environment has built in."""
    return lambda _, envs: np.stack([env.baseline_action(name) for env in envs])


def _utc(info: dict[str, Any]) -> datetime:
    moment: datetime = info["timestamp"].item()
    return moment.replace(tzinfo=UTC)


def _counted(task: Task, infos: list[dict[str, Any]]) -> dict[str, float]:
    """What an episode came to, from what the environment told at its start and after every step."""
    steps = infos[1:]
    if isinstance(task, MarketMakingTask):
        return {
            "wealth_bps": sum(info["wealth_change"] for info in steps),
            "fills": float(sum(info["bought"] + info["sold"] for info in steps)),
            "largest_inventory": float(max(abs(info["inventory"]) for info in infos)),
        }
    if isinstance(task, OptimalExecutionTask):
        value = task.quantity * infos[0]["arrival_price"]
        return {
            "shortfall_bps": _BPS * steps[-1]["shortfall"] / value,
            "risk_penalty_bps": sum(info["risk_penalty"] for info in steps),
        }
    worth: FloatArray = np.array([info["net_value"] for info in infos])
    peak = np.maximum.accumulate(worth)
    return {
        "total_return": float(worth[-1] / worth[0] - 1.0),
        "max_drawdown": float(((peak - worth) / peak).max()),
        "turnover": sum(info["turnover"] for info in steps) / task.initial_capital,
        "cost": sum(info["cost"] for info in steps) / task.initial_capital,
    }
