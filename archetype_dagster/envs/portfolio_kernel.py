"""The compiled loops of the backtest environments: one bar of trading and one observation, copy by copy.

Every array has one row for each of N copies or of T market rows; a copy reads no other copy's.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from archetype_dagster.backtest.engine.compiled import compiled
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, StateArray

_PERCENT: Final = 100.0


@compiled
def order_loss(losses: FloatArray, row: int, leg: int, change: float, sizes_per_unit: int) -> float:
    """Loss of changing a position by `change` units, quote units: priced sizes, linear in between.

    Args:
        losses: float64 (T, L, 2, Q + 1) of buying and of selling 0, 1/s, 2/s .. units.
        row: market row.
        leg: number of the leg.
        change: units bought, negative for sold, at most Q / s of them.
        sizes_per_unit: s.
    """
    side = 0 if change > 0 else 1
    place = abs(change) * sizes_per_unit
    below = min(int(place), losses.shape[3] - 1)
    share = place - below
    loss: float = losses[row, leg, side, below]
    if share > 0 and below + 1 < losses.shape[3]:
        loss += share * (losses[row, leg, side, below + 1] - loss)
    return loss


@compiled
def trade_one_bar(
    targets: FloatArray,
    row: IndexArray,
    end: IndexArray,
    capital: FloatArray,
    cash: FloatArray,
    held: FloatArray,
    pending: FloatArray,
    mark: FloatArray,
    losses: FloatArray,
    sizes_per_unit: IndexArray,
    units: FloatArray,
    funding: FloatArray,
    segment: IndexArray,
    rewards: FloatArray,
    terminated: BoolArray,
    truncated: BoolArray,
    paid: FloatArray,
) -> None:
    """Trade to the targets on each copy's row, move on by a bar, settle its funding and judge the result.

    Args:
        targets: float64 (N, L), wanted positions in units.
        row: int64 (N,), moved on by one unless the trade itself ruins.
        end: int64 (N,), last row of the episode.
        capital: float64 (N,), initial capital.
        cash: float64 (N, L), changed.
        held: float64 (N, L), positions in units, changed.
        pending: float64 (N, d, L), targets on their way, oldest first, NaN for none; changed.
        mark: float64 (T, L).
        losses: float64 (T, L, 2, Q + 1).
        sizes_per_unit: int64 (L,).
        units: float64 (L,), base units of one unit.
        funding: float64 (T, L), what a long position paid since the row before, quote units per base unit.
        segment: (T,).
        rewards: float64 (N,), written: change of net value over initial capital.
        terminated: bool (N,), written: net value zero or less.
        truncated: bool (N,), written: end of the episode without ruin.
        paid: float64 (N, 2), written: execution loss and funding paid in the step, quote units.
    """
    copies, legs = targets.shape
    delay = pending.shape[1]
    for copy in range(copies):
        now = row[copy]
        before = 0.0
        after = 0.0
        paid[copy, 0] = 0.0
        paid[copy, 1] = 0.0
        for leg in range(legs):
            wanted = targets[copy, leg]
            if delay:
                wanted = pending[copy, 0, leg]
                for place in range(delay - 1):
                    pending[copy, place, leg] = pending[copy, place + 1, leg]
                pending[copy, delay - 1, leg] = targets[copy, leg]
            before += cash[copy, leg] + held[copy, leg] * units[leg] * mark[now, leg]
            if not np.isnan(wanted) and wanted != held[copy, leg]:
                change = wanted - held[copy, leg]
                loss = order_loss(losses, now, leg, change, sizes_per_unit[leg])
                cash[copy, leg] -= change * units[leg] * mark[now, leg] + loss
                held[copy, leg] = wanted
                paid[copy, 0] += loss
            after += cash[copy, leg] + held[copy, leg] * units[leg] * mark[now, leg]
        truncated[copy] = False
        terminated[copy] = after <= 0.0
        if terminated[copy]:
            rewards[copy] = (after - before) / capital[copy]
            continue
        row[copy] = now + 1
        after = 0.0
        for leg in range(legs):
            position = held[copy, leg] * units[leg]
            cash[copy, leg] -= position * funding[now + 1, leg]
            paid[copy, 1] += position * funding[now + 1, leg]
            after += cash[copy, leg] + position * mark[now + 1, leg]
        if delay and segment[now + 1] != segment[now]:
            pending[copy] = np.nan
        rewards[copy] = (after - before) / capital[copy]
        terminated[copy] = after <= 0.0
        truncated[copy] = now + 1 >= end[copy] and not terminated[copy]


@compiled
def observe(
    copies: IndexArray,
    row: IndexArray,
    first_mark: FloatArray,
    share: FloatArray,
    cash: FloatArray,
    held: FloatArray,
    mark: FloatArray,
    columns: StateArray,
    offsets: IndexArray,
    first_row: IndexArray,
    lookback: int,
    units: FloatArray,
    relative: bool,
    out: StateArray,
) -> None:
    """Write the observations of some copies: per leg a window of market columns, then cash and position.

    Args:
        copies: int64 (n,), the copies to observe.
        row: int64 (N,).
        first_mark: float64 (N, L), marks at the episodes' starts.
        share: float64 (N, L), each leg's part of the initial capital.
        cash: float64 (N, L).
        held: float64 (N, L).
        mark: float64 (T, L).
        columns: float32 (T, C), market columns of all legs except the mid price.
        offsets: int64 (L + 1,), where each leg's columns begin.
        first_row: int64 (T,), first row of the row's segment: before it the window repeats that row.
        lookback: bars in a window.
        units: float64 (L,).
        relative: percent above the episode's first mark, or quote units; so for cash and position.
        out: float32 (n, ...), written.
    """
    legs = units.shape[0]
    for place in range(copies.shape[0]):
        copy = copies[place]
        # Views of one row each, so that the compiler sees a plain copy.
        target = out[place]
        column = 0
        for leg in range(legs):
            begin, count = offsets[leg], offsets[leg + 1] - offsets[leg]
            for age in range(lookback - 1, -1, -1):
                seen = max(row[copy] - age, first_row[row[copy]])
                price = mark[seen, leg]
                target[column] = _PERCENT * (price / first_mark[copy, leg] - 1.0) if relative else price
                source, shown = columns[seen, begin : begin + count], target[column + 1 : column + 1 + count]
                for number in range(count):
                    shown[number] = source[number]
                column += 1 + count
            target[column] = cash[copy, leg] / share[copy, leg] if relative else cash[copy, leg]
            target[column + 1] = held[copy, leg] if relative else held[copy, leg] * units[leg]
            column += 2
