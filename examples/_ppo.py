"""What the PPO examples share: training, a run over the held-out bars, and the table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from archetype_dagster.backtest import bars_per_year, performance
from archetype_dagster.backtest.statistics import Interval, bootstrap_intervals
from archetype_dagster.envs.backtest_env import PortfolioEnv
from archetype_dagster.envs.sb3 import PortfolioVecEnv
from archetype_dagster.envs.vector import PortfolioVectorEnv
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import StatisticsSettings

Act = Callable[[NDArray[np.float32]], NDArray[np.generic]]
NUM_ENVS = 64
# A bar's noise is ten times its drift: what counts beyond some ten bars drowns the cost of trading now.
DISCOUNT = 0.9
DEFAULTS: Mapping[str, float] = {"learning_rate": 3e-4, "gamma": DISCOUNT}


@dataclass(frozen=True)
class HeldOut:
    """One policy's run over the held-out bars.

    Attributes:
        net_value: float64 (T,), quote units, from the initial capital on.
        turnover: position changes in units, all legs.
        total_return: as a fraction.
        max_drawdown: as a fraction.
        sharpe: a year, with its bootstrap interval; undefined where nothing was earned or lost.
        sharpe_before_costs: likewise of the net value without its execution losses: what foresight there was.
    """

    net_value: NDArray[np.float64]
    turnover: float
    total_return: float
    max_drawdown: float
    sharpe: Interval
    sharpe_before_costs: Interval


def trained(
    market: PortfolioVectorEnv,
    *,
    steps: int,
    seed: int,
    log: Path,
    name: str,
    chosen: Mapping[str, float] = DEFAULTS,
    callback: BaseCallback | None = None,
) -> PPO:
    """PPO after `steps` environment steps, its curves in TensorBoard files under `log`.

    `chosen` replaces arguments of PPO among `DEFAULTS`; `callback` is asked along the way.
    """
    torch.set_num_threads(1)
    copies = market.num_envs
    arguments = {**DEFAULTS, **chosen}
    # Rewards are basis points of the capital: unscaled, the value network would learn nothing from them.
    envs = VecNormalize(VecMonitor(PortfolioVecEnv(market)), norm_obs=False, norm_reward=True, gamma=arguments["gamma"])
    per_update = max(16, min(64, steps // copies // 16 * 16))
    model = PPO(
        "MlpPolicy", envs, n_steps=per_update, batch_size=4 * copies, seed=seed, device="cpu",
        tensorboard_log=str(log), **arguments,
    )  # fmt: skip
    model.learn(steps, callback, tb_log_name=name)
    return model


def greedy(model: PPO) -> Act:
    """The trained policy without its sampling."""
    return lambda observation: model.predict(observation, deterministic=True)[0]


def drawn(env: PortfolioEnv, seed: int) -> Act:
    """Uniformly random actions."""
    env.action_space.seed(seed)
    return lambda _: env.action_space.sample()


def held_out(env: PortfolioEnv, act: Act, *, seed: int) -> HeldOut:
    """Run a policy once over all bars of `env`, from the first, and measure it."""
    observation, info = env.reset(seed=seed)
    values, losses, positions, ended = [info["net_value"]], [0.0], [info["position"]], False
    while not ended:
        observation, _, terminated, truncated, info = env.step(act(observation))
        values.append(info["net_value"])
        losses.append(info["loss"])
        positions.append(info["position"])
        ended = terminated or truncated
    path, year = np.array(values), bars_per_year(env.portfolio.timestamps)
    measured = performance(path, periods_per_year=year)
    sharpe, before_costs = (
        bootstrap_intervals(values, settings=StatisticsSettings(), periods_per_year=year, seed=seed)["sharpe"]
        for values in (path, path + np.cumsum(losses))
    )
    turnover = float(np.abs(np.diff(np.array(positions) / env.portfolio.units, axis=0)).sum())
    return HeldOut(path, turnover, measured.total_return, measured.max_drawdown, sharpe, before_costs)


def print_results(results: Mapping[str, HeldOut], env: PortfolioEnv) -> None:
    """The held-out results as a table."""
    first, last = env.portfolio.timestamps[[0, -1]].astype("datetime64[m]")
    print(f"held out: {len(env.portfolio.mark)} bars, {first} to {last} UTC")
    print(f"{'Sharpe a year':>80}{'before costs':>26}")
    print(f"{'':24}{'return':>10}{'drawdown':>10}{'turnover':>10}{'(95 % interval)':>26}{'(95 % interval)':>26}")
    for name, result in results.items():
        figures = f"{result.total_return:10.2%}{result.max_drawdown:10.2%}{result.turnover:10,.0f}"
        print(f"{name:24}{figures}{_shown(result.sharpe):>26}{_shown(result.sharpe_before_costs):>26}")


def _shown(sharpe: Interval) -> str:
    if sharpe.estimate is None:
        return "undefined"
    return f"{sharpe.estimate:.2f} ({sharpe.low:.2f} to {sharpe.high:.2f})"


def log_results(model: PPO, results: Mapping[str, HeldOut]) -> None:
    """The held-out results beside the training curves in TensorBoard."""
    for name, result in results.items():
        place = f"held_out/{name.replace(' ', '_')}"
        model.logger.record(f"{place}/total_return", result.total_return)
        if result.sharpe.estimate is not None:
            model.logger.record(f"{place}/sharpe", result.sharpe.estimate)
    model.logger.dump(model.num_timesteps)


def shuffled(tables: Sequence[pl.DataFrame], seed: int) -> list[pl.DataFrame]:
    """Tables of the same bars whose returns come in another order: a market in which nothing foretells anything.

    One permutation for all tables, so that legs still move together; each bar's candle and book keep their shape
    around the new price.
    """
    order = numpy_generator(seed, "shuffled_returns").permutation(tables[0].height - 1)
    found = []
    for bars in tables:
        mid = ((bars["bid1_price"] + bars["ask1_price"]) / 2).to_numpy()
        path = mid[0] * np.exp(np.concatenate([[0.0], np.cumsum(np.diff(np.log(mid))[order])]))
        priced = [name for name in bars.columns if name.endswith("_price") or name in {"open", "high", "low", "close"}]
        found.append(bars.with_columns(pl.col(priced) * pl.Series(path / mid)))
    return found
