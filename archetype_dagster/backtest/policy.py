"""The whole policy on a stretch of bars: archetype per horizon, action per bar, one override per horizon.

Every horizon is decided at once. The one thing that links them is the position carried from one
horizon into the next, which has three possible values: each horizon is worked out for all three, and
the resulting maps are composed by a logarithmic scan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.backtest.refined_plans import refined_plans, unrefined_plans
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import HorizonBatch, MarketDataset
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.selection import ContinuousSelector, Selector, base_plan
from archetype_dagster.settings import Settings
from archetype_dagster.types import FLAT, ActionArray, BoolArray, IndexArray, StateArray


@dataclass(frozen=True)
class TradingPolicy:
    """Three frozen phases and the settings they run under.

    Attributes:
        codebook: Phase I.
        selector: Phase II.
        refiner: Phase III; None leaves the base actions as they are.
        settings: horizon boundary, override rule.

    Raises:
        ArtifactError: a selector over embeddings with a codebook of codes or the other way round, or with a refiner.
    """

    codebook: Codebook
    selector: Selector | ContinuousSelector
    refiner: Refiner | None
    settings: Settings

    def __post_init__(self) -> None:
        embedding = self.codebook.settings.embedding
        if self.continuous != (embedding == "continuous"):
            raise ArtifactError(f"a {type(self.selector).__name__} cannot choose for codebook.embedding {embedding!r}")
        if self.continuous and self.refiner is not None:
            raise ArtifactError("a refiner needs the embedding of a code; a continuous policy trades its base actions")

    @property
    def continuous(self) -> bool:
        """True where embeddings are chosen instead of codes."""
        return isinstance(self.selector, ContinuousSelector)

    @property
    def hindsight(self) -> bool:
        """True where the decoder reads the horizon's future."""
        return self.codebook.hindsight

    def without_refinement(self) -> TradingPolicy:
        """The same policy trading its base actions."""
        return replace(self, refiner=None)


@dataclass(frozen=True)
class DecisionTrace:
    """The numbers behind the decisions, for checks and export parity.

    Attributes:
        selector_logits: float32 (n, K), at each horizon's first row; the chosen embeddings (n, D) where continuous.
        decoder_logits: float32 (T, 3).
        context: float32 (T, C), what the refiner saw; None without one.
        refiner_logits: float32 (T, 3) over [short, nothing, long]; None without a refiner.
    """

    selector_logits: NDArray[np.float32]
    decoder_logits: NDArray[np.float32]
    context: StateArray | None
    refiner_logits: NDArray[np.float32] | None


@dataclass(frozen=True)
class Decisions:
    """What the policy decides on each of a dataset's T rows, cut into n consecutive horizons.

    Attributes:
        starts: int64 (n,), first row of each horizon.
        lengths: int64 (n,), rows of each horizon, 1..h; a gap or the end of data cuts one short.
        codes: int64 (n,), archetype chosen at the first row; -1 where the policy is continuous.
        initial_actions: int8 (n,), action held before the first row.
        base_actions: int8 (T,), the archetype's actions.
        override_rows: int64 (n,), row at which the refiner acts, -1 for none.
        override_directions: int8 (n,), -1 short, +1 long, 0 for none.
        actions: int8 (T,), final actions (Eq. 6).
        trace: the numbers behind, where asked for.
    """

    starts: IndexArray
    lengths: IndexArray
    codes: IndexArray
    initial_actions: ActionArray
    base_actions: ActionArray
    override_rows: IndexArray
    override_directions: ActionArray
    actions: ActionArray
    trace: DecisionTrace | None = None


def decide(
    policy: TradingPolicy, dataset: MarketDataset, *, codes: IndexArray | None = None, trace: bool = False
) -> Decisions:
    """Run the policy over every row of a dataset, as it would run live: horizon after horizon, position carried.

    A horizon starts at each segment's first row and every h bars after it. It starts from the final
    action of the horizon before, or from flat after a gap and under `horizon_boundary: settle`.

    Args:
        policy: the frozen phases.
        dataset: rows with features, T >= 1.
        codes: int64 (n,), archetypes to use instead of the selector's choice.
        trace: also keep logits and contexts.

    Raises:
        ValueError: an empty dataset, codes that are not one per horizon, or codes for a continuous policy.
    """
    if not len(dataset):
        raise ValueError("decide needs at least one row, got an empty dataset")
    starts, lengths = dataset.decision_starts()
    batch = padded_horizons(dataset, starts)
    base = base_plan(policy.codebook, policy.selector, dataset, starts, batch.states, codes=codes)
    real = np.arange(dataset.horizon_bars) < lengths[:, np.newaxis]
    refined = (
        unrefined_plans(base.actions)
        if policy.refiner is None
        else refined_plans(
            policy.refiner,
            batch,
            _by_horizon(policy.refiner.encoded(dataset), real),
            policy.codebook.embed(base.codes),
            base.actions,
            max_position=dataset.max_position,
            delay=dataset.execution_delay_bars,
            override=policy.settings.refinement.override,
        )
    )

    last = lengths[:, np.newaxis, np.newaxis] - 1
    ends = np.take_along_axis(refined.actions, np.broadcast_to(last, (len(starts), 3, 1)), axis=2)[..., 0]
    fresh = dataset.segment[starts] != dataset.segment[np.maximum(starts - 1, 0)]
    fresh[0] = True
    if policy.settings.execution.horizon_boundary == "settle":
        fresh[:] = True
    initial = carried_actions(ends, fresh)

    horizon = np.arange(len(starts))
    steps, directions = refined.steps[horizon, initial], refined.directions[horizon, initial]
    acts = (steps >= 0) & (steps < lengths)
    kept = None
    if trace:
        kept = DecisionTrace(
            base.scores,
            base.logits[real],
            None if refined.context is None else refined.context[horizon, initial][real],
            None if refined.logits is None else refined.logits[horizon, initial][real],
        )
    return Decisions(
        starts=starts,
        lengths=lengths,
        codes=base.codes,
        initial_actions=initial,
        base_actions=base.actions[real],
        override_rows=np.where(acts, starts + steps, -1),
        override_directions=np.where(acts, directions, 0).astype(np.int8),
        actions=refined.actions[horizon, initial][real],
        trace=kept,
    )


def archetype_actions(codebook: Codebook, dataset: MarketDataset) -> ActionArray:
    """Base actions of every archetype on every row, int8 (K, T), each horizon decoded with each code."""
    starts, lengths = dataset.decision_starts()
    real = np.arange(dataset.horizon_bars) < lengths[:, np.newaxis]
    actions = codebook.decode_all_codes(padded_horizons(dataset, starts).states)
    return np.ascontiguousarray(actions.transpose(1, 0, 2)[:, real])


def padded_horizons(dataset: MarketDataset, starts: IndexArray) -> HorizonBatch:
    """Horizons of h bars at `starts` (B,), also where the segment ends sooner.

    Beyond a segment's last row states are zero and prices stay at that row's, so what a causal
    policy does on the real rows is not touched.
    """
    h, delay = dataset.horizon_bars, dataset.execution_delay_bars
    last = np.searchsorted(dataset.segment, dataset.segment[starts], side="right")[:, np.newaxis] - 1
    rows = starts[:, np.newaxis] + np.arange(h + 1)
    states = dataset.states[np.minimum(rows[:, :-1], last)]
    states[rows[:, :-1] > last] = 0.0
    executed = np.minimum(rows + delay, last)
    return HorizonBatch(states, dataset.mark[executed], dataset.costs[executed[:, :-1]])


def _by_horizon(rows: StateArray, real: BoolArray) -> StateArray:
    """Rows (T, D) of consecutive horizons as (n, h, D), zero beyond a horizon's length, by real bool (n, h)."""
    padded = np.zeros((*real.shape, rows.shape[1]), dtype=rows.dtype)
    padded[real] = rows
    return padded


def carried_actions(ends: ActionArray, fresh: BoolArray) -> ActionArray:
    """Action held before each horizon, given what each would end on from every action it may start from.

    Composition of maps {0, 1, 2} -> {0, 1, 2} is associative, so all prefixes follow from
    ceil(log2 n) rounds of pairwise composition.

    Args:
        ends: integers (n, 3), last action of horizon k when it starts from action i.
        fresh: bool (n,), horizons that start from flat whatever was before; the first one counts as such.

    Returns:
        int8 (n,).
    """
    prefix = np.where(fresh[:, np.newaxis], ends[:, [FLAT]], ends).astype(np.int64)
    span = 1
    while span < len(prefix):
        prefix[span:] = np.take_along_axis(prefix[span:], prefix[:-span], axis=1)
        span *= 2
    before = np.concatenate([[FLAT], prefix[:-1, FLAT]])
    return np.where(fresh, FLAT, before).astype(np.int8)
