"""Tune PPO on a spot pair and its perpetual swap: trials in processes of their own, one look at the held-out bars.

    python examples/hpo_spot_perp_demo.py --n-trials 100 --n-jobs 8
    tensorboard --logdir result/examples/hpo_spot_perp/trials

The market is that of spot_perp_arb_demo.py, `--data` as there. Its first half trains each trial's policy, the next
fifth judges it: what is sought is the validation Sharpe ratio, reported four times a trial so that a poor one ends
early. Bars of the last three tenths are read by nothing until the sweep is over; then PPO with its own defaults and
PPO as tuned are trained with the same fresh seeds and judged there, once. The study lies in a journal under `--out`,
and the same command goes on with it after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import polars as pl
from _ppo import DEFAULTS, NUM_ENVS, Act, HeldOut, greedy, held_out, print_results, trained
from rich.progress import Progress as Bars
from spot_perp_arb_demo import FLAT, SHOWN, WHOLE, loaded
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from archetype_dagster.backtest import bars_per_year, performance
from archetype_dagster.backtest.engine.instruments import spot_instrument, swap_instrument
from archetype_dagster.envs import MultiLegBacktestEnv, MultiLegBacktestVectorEnv
from archetype_dagster.sweeps import RLHPOSweeper, SweepResult, make_tb_log_dir, sb3_keywords

VALIDATION_BEGINS, HELD_OUT_BEGINS = 0.5, 0.7
REPORTS = 4
# Accounts that share a validation pass: one after the other, the bars would take longer than the training.
STRETCHES = 32


@dataclass(frozen=True)
class Task:
    """What every trial shares: plain values, from which each process loads its own market.

    Attributes:
        data: folder of real candles and funding; None for the embedded market.
        base: base currency of both legs.
        size: base units of each leg at an action of one.
        days: of the data.
        steps: environment steps of a training.
        seed: of the trials' trainings, the same for all of them.
        logs: folder of the trials' TensorBoard directories.
    """

    data: Path | None
    base: str
    size: float
    days: int
    steps: int
    seed: int
    logs: Path

    def market(self, begin: float, end: float) -> tuple[list[Any], list[pl.DataFrame], Mapping[str, pl.DataFrame]]:
        """Legs, bars between two shares of the data, and funding."""
        bars, funding = _loaded_once(self.data, self.base, self.days)
        instruments = (spot_instrument(self.base, "USDT"), swap_instrument(self.base, "USDT"))
        rows = [int(share * bars[0].height) for share in (begin, end)]
        legs = [(instrument, self.size) for instrument in instruments]
        return legs, [table[rows[0] : rows[1]] for table in bars], funding

    def train(self, params: Mapping[str, float], *, seed: int, log: Path, callback: BaseCallback | None = None) -> PPO:
        """PPO with `params` after its steps on the first half."""
        legs, bars, funding = self.market(0, VALIDATION_BEGINS)
        market = MultiLegBacktestVectorEnv(NUM_ENVS, legs, data=bars, funding=funding, settings=SHOWN)
        return trained(market, steps=self.steps, seed=seed, log=log, name="ppo", chosen=params, callback=callback)


# Trials in one process share the market, which takes longer to load than a short training.
_loaded_once = lru_cache(maxsize=1)(loaded)


class Validation(BaseCallback):
    """Reports the validation Sharpe ratio `REPORTS` times in a training, and ends it where the pruner says so."""

    def __init__(self, task: Task, trial: optuna.Trial) -> None:
        super().__init__()
        self._task, self._trial = task, trial
        self.reports = 0
        self.sharpe: float | None = None

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # Between two rollouts the weights are those of the last update.
        if self.num_timesteps >= (self.reports + 1) * self._task.steps / REPORTS:
            self.report()

    def _on_training_end(self) -> None:
        self.report()

    def report(self) -> None:
        """Go over the validation bars once."""
        legs, bars, funding = self._task.market(VALIDATION_BEGINS, HELD_OUT_BEGINS)
        market = MultiLegBacktestVectorEnv(STRETCHES, legs, data=bars, funding=funding, settings=WHOLE)
        self.sharpe = sharpe_in_stretches(market, greedy(self.model))
        self.reports += 1
        if self.sharpe is None:
            raise optuna.TrialPruned("a policy that earns and loses nothing has no Sharpe ratio")
        self._trial.report(self.sharpe, self.reports)
        if self._trial.should_prune():
            raise optuna.TrialPruned


def sharpe_in_stretches(market: MultiLegBacktestVectorEnv, act: Act) -> float | None:
    """Sharpe ratio a year over all bars of `market`, its copies side by side on successive stretches of them.

    Each begins flat, which costs a policy that would hold a position an entry the more.
    """
    first = market.reset()[1]["row"][0]
    length = (len(market.portfolio.mark) - 2 - first) // market.num_envs
    starts = first + length * np.arange(market.num_envs)
    observations, info = market.reset(options={"start": starts})
    values = [info["net_value"]]
    for _ in range(length):
        observations, _, terminated, _, info = market.step(act(observations))
        if terminated.any():
            raise optuna.TrialPruned("ruined on the validation bars")
        values.append(info["net_value"])
    growth = np.array(values[1:]) / np.array(values[:-1])
    path = np.cumprod(np.concatenate([[1.0], growth.T.ravel()]))
    return performance(path, periods_per_year=bars_per_year(market.portfolio.timestamps)).sharpe


def objective(params: Mapping[str, float], trial: optuna.Trial, *, task: Task) -> float | None:
    """The validation Sharpe ratio of PPO trained with `params`."""
    validation = Validation(task, trial)
    task.train(sb3_keywords(params), seed=task.seed, log=make_tb_log_dir(trial.number, task.logs), callback=validation)
    return validation.sharpe


def compared(task: Task, tuned: Mapping[str, float], seeds: Sequence[int]) -> dict[str, HeldOut]:
    """PPO with its defaults and as tuned, each with every seed, on the held-out bars."""
    legs, bars, funding = task.market(HELD_OUT_BEGINS, 1)
    env = MultiLegBacktestEnv(legs, data=bars, funding=funding, settings=WHOLE)
    results = {}
    for name, params in (("default", DEFAULTS), ("tuned", sb3_keywords(tuned))):
        for seed in seeds:
            model = task.train(params, seed=seed, log=task.logs.parent / "final" / name)
            results[f"{name}, seed {seed}"] = held_out(env, greedy(model), seed=seed)
    results["flat"] = held_out(env, lambda _: FLAT, seed=task.seed)
    print_results(results, env)
    return results


def sharpes(results: Mapping[str, HeldOut], name: str) -> list[float]:
    """Held-out Sharpe ratios of a policy's seeds; one that never traded counts as none earned."""
    return [result.sharpe.estimate or 0.0 for key, result in results.items() if key.startswith(f"{name},")]


def main(arguments: Sequence[str] | None = None) -> tuple[SweepResult, dict[str, HeldOut]]:
    """Sweep, then judge once; returns the sweep and the held-out results by policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-trials", type=int, default=100)
    parser.add_argument("--n-jobs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each training")
    parser.add_argument("--seed", type=int, default=0, help="of the sweep and of the trials' trainings")
    parser.add_argument("--seeds", type=int, default=5, help="fresh ones with which default and tuned are compared")
    parser.add_argument("--base", default="BTC")
    parser.add_argument("--size", type=float, default=1.0, help="base units of each leg at an action of one")
    parser.add_argument("--data", type=Path, help="folder of real candles and funding")
    parser.add_argument("--days", type=int, default=365, help="of the data, the last before September 2024")
    parser.add_argument("--storage", help="journal file or URL of a database server, in place of the one under --out")
    parser.add_argument("--out", type=Path, default=Path("result/examples/hpo_spot_perp"))
    options = parser.parse_args(arguments)
    task = Task(
        options.data, options.base, options.size, options.days, options.steps, options.seed, options.out / "trials"
    )
    # Here, because each worker process loads this file and has no use for the terminal's bars.
    from resources.progress import BarProgress, bar_columns

    with ExitStack() as stack:
        bars = stack.enter_context(Bars(*bar_columns(), transient=True))
        market = "embedded" if options.data is None else options.data.resolve().name
        result = RLHPOSweeper(
            # Trials of another market or length are other trials.
            f"{market}-{options.base}-{options.size}-{options.days}d-{options.steps}-seed{options.seed}",
            n_trials=options.n_trials,
            storage=options.storage or options.out / "study.journal",
            n_jobs=options.n_jobs,
            seed=options.seed,
            tb_logs=task.logs,
            progress=BarProgress(bars, "trials"),
        ).sweep(partial(objective, task=task))
    print(f"{result.n_trials} trials complete, {result.n_pruned} pruned, {result.n_failed} failed")
    print(f"best validation Sharpe {result.best_value:.2f} of trial {result.best_trial}: {result.best_params}")
    results = compared(task, result.best_params, range(options.seed + 1, options.seed + 1 + options.seeds))
    default, tuned = (float(np.mean(sharpes(results, name))) for name in ("default", "tuned"))
    print(f"held-out Sharpe, mean of {options.seeds} seeds: default {default:.2f}, tuned {tuned:.2f}")
    return result, results


if __name__ == "__main__":
    main()
