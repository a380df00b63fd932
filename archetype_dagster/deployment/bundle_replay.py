"""A whole stretch of bars through a bundle at once: what streaming decides bar by bar, vectorised over horizons."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from archetype_dagster.backtest.policy import carried_actions, padded_horizons
from archetype_dagster.codebook.decoding import decode_step
from archetype_dagster.deployment.bundle_graphs import BundleGraphs
from archetype_dagster.market.dataset import HorizonBatch, MarketDataset
from archetype_dagster.planning.adaptations import apply_override, legal_override_mask
from archetype_dagster.planning.rewards import horizon_rewards
from archetype_dagster.refinement.adapter import greedy_override, realised_base_returns
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray, IndexArray, StateArray

_ROWS_AT_ONCE: Final = 4096


def replay_bundle(graphs: BundleGraphs, dataset: MarketDataset) -> ActionArray:
    """Actions int8 (T,) of a bundle on a dataset's rows, on its own logits throughout; see `backtest.policy.decide`.

    Args:
        graphs: the opened bundle.
        dataset: T >= 1 rows, scaled and priced as the bundle was trained.

    Raises:
        ValueError: an empty dataset.
    """
    if not len(dataset):
        raise ValueError("replay_bundle needs at least one row, got an empty dataset")
    starts, lengths = dataset.decision_starts()
    batch = padded_horizons(dataset, starts)
    real = np.arange(dataset.horizon_bars) < lengths[:, np.newaxis]
    portions = MarketWindows(dataset, graphs.selector_bars).portions(torch.from_numpy(starts))
    codes = np.concatenate([graphs.code_logits(portion.numpy()).argmax(axis=1) for portion in portions])
    base = _base_actions(graphs, batch.states, codes)
    if not graphs.refines:
        return base[real]
    plans = np.stack([_refined(graphs, dataset, batch, codes, base, real, initial) for initial in (SHORT, FLAT, LONG)])
    fresh = np.diff(dataset.segment[starts], prepend=dataset.segment[0] - 1) != 0
    if graphs.manifest["horizon_boundary"] == "settle":
        fresh[:] = True
    horizon = np.arange(len(starts))
    initial = carried_actions(plans[:, horizon, lengths - 1].T, fresh)
    return np.asarray(plans[initial, horizon][real])


def _base_actions(graphs: BundleGraphs, states: StateArray, codes: IndexArray) -> ActionArray:
    """Archetypes' actions int8 (n, h) on states (n, h, F)."""
    state = graphs.initial_state(len(codes))
    actions = np.full(len(codes), FLAT, dtype=np.int8)
    steps = []
    for tau in range(states.shape[1]):
        logits, state = graphs.action_logits(np.ascontiguousarray(states[:, tau]), codes, state)
        actions = decode_step(logits, actions, graphs.decoding)
        steps.append(actions)
    return np.stack(steps, axis=1)


def _refined(
    graphs: BundleGraphs,
    dataset: MarketDataset,
    batch: HorizonBatch,
    codes: IndexArray,
    base: ActionArray,
    real: np.ndarray,
    initial: int,
) -> ActionArray:
    """Final actions int8 (n, h) of horizons that start from one action; only their real steps mean anything."""
    n, h = base.shape
    rewards = horizon_rewards(
        base, batch.mark, batch.costs, max_position=dataset.max_position, initial_action=np.full(n, initial)
    )
    notional = dataset.max_position * batch.mark[:, 0]
    realised = realised_base_returns(rewards, notional, delay=dataset.execution_delay_bars)[real]
    time_left = np.broadcast_to((h - np.arange(h)) / h, base.shape)[real].astype(np.float32)
    by_row, actions = np.broadcast_to(codes[:, np.newaxis], base.shape)[real], base[real]
    windows = MarketWindows(dataset, graphs.refiner_bars)
    logits = np.zeros((n, h, 3), dtype=np.float32)
    logits[real] = np.concatenate(
        [
            graphs.override_logits(
                windows.at(torch.arange(rows.start, rows.stop)).numpy(),
                by_row[rows],
                actions[rows],
                realised[rows],
                time_left[rows],
            )
            for rows in _portions(len(dataset))
        ]
    )
    steps, directions = greedy_override(logits, legal_override_mask(base, initial_action=np.full(n, initial)))
    return apply_override(base, steps, directions, graphs.override)


def _portions(rows: int) -> list[slice]:
    return [slice(at, min(at + _ROWS_AT_ONCE, rows)) for at in range(0, rows, _ROWS_AT_ONCE)]
