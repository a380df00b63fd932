"""The compiled loops of the batched trading environment; what is checked is checked by their caller."""

from __future__ import annotations

from archetype_dagster.backtest.engine.compiled import compiled
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, StateArray


@compiled
def trade_rows(
    taken: IndexArray,
    row: IndexArray,
    held: IndexArray,
    end: IndexArray,
    table: FloatArray,
    rewards: FloatArray,
    truncated: BoolArray,
) -> bool:
    """Trade one bar in each of N copies; False, and nothing changed, where an action lies outside 0..2.

    Args:
        taken: int64 (N,), actions.
        row: int64 (N,), moved on by one.
        held: int64 (N,), set to the actions.
        end: int64 (N,), row at which each episode is cut off.
        table: float64 (9 T,), rewards by row, held and taken action.
        rewards: float64 (N,), written.
        truncated: bool (N,), written.
    """
    for copy in range(len(taken)):
        if taken[copy] < 0 or taken[copy] > 2:
            return False
    for copy in range(len(taken)):
        rewards[copy] = table[9 * row[copy] + 3 * held[copy] + taken[copy]]
        row[copy] += 1
        held[copy] = taken[copy]
        truncated[copy] = row[copy] >= end[copy]
    return True


@compiled
def gather_states(states: StateArray, row: IndexArray, held: IndexArray, out: StateArray) -> None:
    """Write each copy's state and its held action, one-hot: float32 (T, F) at (N,) into float32 (N, F + 3)."""
    features = states.shape[1]
    for copy in range(len(row)):
        # Views of one row each: without them the compiler does not see that the inner loop is a plain copy.
        source, target = states[row[copy]], out[copy]
        for column in range(features):
            target[column] = source[column]
        for action in range(3):
            target[features + action] = 1.0 if held[copy] == action else 0.0
