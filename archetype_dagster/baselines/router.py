"""EarnHFT's router: a double Q-network on coarse steps that hands each block of bars to an agent of the pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from torch import nn

from archetype_dagster.backtest.policy import carried_actions
from archetype_dagster.baselines.learning_market import LearningMarket
from archetype_dagster.baselines.transitions import rewards_from_each, rolled_from_each
from archetype_dagster.baselines.value_learning import VALIDATION_SCORE, greedy_actions, next_values, stage_plan
from archetype_dagster.baselines.value_networks import OnlineAndTarget
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.rl.objectives import Parts
from archetype_dagster.rl.training_loop import Objective, Validate, maximise
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import ActionArray, IndexArray, Progress, StateArray


@dataclass(frozen=True)
class RoutedBlocks:
    """What each choice of the router leads to, from every training row where a whole block fits.

    Attributes:
        starts: int64 (n,), the blocks' first rows.
        returns: float32 (n, 3, L), discounted sum of a block's rewards by (held, trend label), percent of notional.
        ends: int64 (n, 3, L), action held after it.
    """

    starts: IndexArray
    returns: torch.Tensor
    ends: torch.Tensor


def routed_blocks(
    market: LearningMarket,
    next_actions: ActionArray,
    pool: IndexArray,
    *,
    bars: int,
    gamma: float,
) -> RoutedBlocks:
    """Let every agent trade every block from every held action, and order what it earns by the router's choices.

    Args:
        market: training split of T rows.
        next_actions: int8 (A, T, 3), decision of each agent on each row by held action.
        pool: int64 (L, 3), agent for each trend label and held action.
        bars: bars per block.
        gamma: discount per bar.
    """
    starts = replace(market.dataset, horizon_bars=bars).horizon_starts()
    rows = starts[:, np.newaxis] + np.arange(bars)
    discounts = gamma ** np.arange(bars)
    returns, ends = np.empty((len(starts), 3, len(next_actions))), np.empty((len(starts), 3, len(next_actions)), int)
    for agent, maps in enumerate(next_actions):
        actions = rolled_from_each(maps[rows][:, np.newaxis])
        returns[:, :, agent] = rewards_from_each(market.table.percent[rows], actions) @ discounts
        ends[:, :, agent] = actions[:, :, -1]
    by_label = np.broadcast_to(pool.T, (len(starts), *pool.T.shape))
    chosen_returns, chosen_ends = (np.take_along_axis(values, by_label, axis=2) for values in (returns, ends))
    return RoutedBlocks(starts, torch.from_numpy(chosen_returns).float(), torch.from_numpy(chosen_ends))


def routed_actions(
    router: nn.Module,
    pool: IndexArray,
    next_actions: ActionArray,
    dataset: MarketDataset,
    *,
    bars: int,
    device: torch.device,
) -> ActionArray:
    """Trade a dataset: at each block's first row the router chooses an agent by state and position, and it trades on.

    Blocks begin at each segment's first row and every `bars` rows; the position is carried from block to block.

    Args:
        router: values of the L labels for each held action, float32 (B, F) -> (B, 3, L).
        pool: int64 (L, 3), agent for each label and held action.
        next_actions: int8 (A, T, 3), as in `routed_blocks`.
        dataset: T rows.
        bars: bars per block.
        device: where the router is.

    Returns:
        int8 (T,).
    """
    starts, lengths = replace(dataset, horizon_bars=bars).decision_starts()
    labels = greedy_actions(router, dataset.states[starts], device)
    agents = pool[labels, np.arange(3)]
    offsets = np.arange(bars)
    rows = np.minimum(starts[:, np.newaxis] + offsets, len(dataset) - 1)
    actions = rolled_from_each(next_actions[agents[:, :, np.newaxis], rows[:, np.newaxis]])
    blocks = np.arange(len(starts))
    ends = actions[blocks, :, lengths - 1]
    fresh = np.ones(len(starts), dtype=np.bool_)
    fresh[1:] = dataset.segment[starts[1:]] != dataset.segment[starts[:-1]]
    held = carried_actions(ends, fresh)
    taken: ActionArray = actions[blocks, held][offsets < lengths[:, np.newaxis]]
    return taken


def train_router(
    pair: OnlineAndTarget,
    blocks: RoutedBlocks,
    states: StateArray,
    validate: Validate,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> pl.DataFrame:
    """Learn what each choice is worth, backing up all (held action, label) pairs of each block of a batch.

    Args:
        pair: the router with its target; holds the result.
        blocks: what the choices lead to.
        states: float32 (T, F), training states.
        validate: metrics of the current router, `VALIDATION_SCORE` among them.
        settings: budget and the method's settings; a block of M bars counts M steps.
        seed: seed of the run.
        device: where to train.
        resume: where to save the state.
        progress: told the steps done.

    Returns:
        the history, see `maximise`.
    """
    method, bars = settings.earnhft, settings.earnhft.decision_bars
    inputs, starts = torch.from_numpy(states).to(device), torch.from_numpy(blocks.starts).to(device)
    returns, ends = blocks.returns.to(device), blocks.ends.to(device)

    def prepare(indices: torch.Tensor, generator: torch.Generator) -> Objective:
        pair.follow(method.target_rate)
        drawn = indices.to(device)
        with torch.no_grad():
            after = inputs[starts[drawn] + bars]
            worth = next_values(pair(after), pair.target(after)).unsqueeze(1).expand(-1, 3, -1)
            wanted = returns[drawn] + settings.gamma**bars * worth.gather(2, ends[drawn])

        def objective() -> tuple[torch.Tensor, Parts]:
            error = (pair(inputs[starts[drawn]]) - wanted).square().mean()
            return -error, {"td_error": error}

        return objective

    plan = stage_plan(
        "earnhft_router",
        settings,
        method,
        share=1 - method.agents_share,
        horizons=len(blocks.starts),
        horizon_bars=bars,
    )
    return maximise(
        pair,
        plan,
        prepare=prepare,
        validate=validate,
        score=VALIDATION_SCORE,
        seed=seed,
        resume=resume,
        progress=progress,
    )
