"""Everything about a horizon that does not change while the refiner trains, computed once.

Kept per horizon: the base plan, what of it is realised when, which overrides are legal, what each would
earn and what hindsight would choose. The states are not copied; a batch gathers them from the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import adaptation_returns, rank_adaptations
from archetype_dagster.refinement.adapter import assemble_context, realised_base_returns
from archetype_dagster.refinement.targets import adaptation_gains, hindsight_targets, refinement_rewards
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import RefinementSettings
from archetype_dagster.types import ActionArray, BoolArray, FloatArray, IndexArray, Progress, StateArray

# Bounds the memory: a chunk's states and costs take about 40 MB at the paper's sizes.
_CHUNK_STARTS: Final = 1024


@dataclass(frozen=True)
class RefinementTable:
    """n horizons of h bars, base plan from flat; amounts in percent of m p_0; direction 0 is short, 1 is long.

    Attributes:
        starts: int64 (n,), rows of the dataset.
        codes_embedding: float32 (n, D), embedding of the selector's greedy code.
        base_actions: int8 (n, h), that code decoded.
        realised: float32 (n, h), R_arche, see `realised_base_returns`.
        base_return: float64 (n,), return of the base plan.
        legal: bool (n, h, 2), where an override may act (Eq. 6).
        gains: float32 (n, h, 2), R - R_base of each override, 0 where illegal.
        rewards: float32 (n, h, 2), r_ref of Eq. (8), 0 where illegal.
        targets: float32 (n, h, 3), see `hindsight_targets`.
    """

    starts: IndexArray
    codes_embedding: StateArray
    base_actions: ActionArray
    realised: StateArray
    base_return: FloatArray
    legal: BoolArray
    gains: StateArray
    rewards: StateArray
    targets: StateArray

    def __len__(self) -> int:
        return len(self.starts)

    def context(self, indices: IndexArray) -> StateArray:
        """Context of some horizons, float32 (B, h, C); see `refinement_context`."""
        return assemble_context(self.codes_embedding[indices], self.base_actions[indices], self.realised[indices])


def build_refinement_table(
    dataset: MarketDataset,
    starts: IndexArray,
    codebook: Codebook,
    selector: Selector,
    settings: RefinementSettings,
    *,
    beta_1: float,
    progress: Progress,
) -> RefinementTable:
    """Decode the selector's greedy code on each horizon and price every override of it.

    Args:
        dataset: the split.
        starts: int64 (n,), its horizon starts to use.
        codebook: the frozen archetypes.
        selector: the frozen selector.
        settings: override rule and number of hindsight adaptations.
        beta_1: weight of the regret.
        progress: told the starts done.
    """
    progress.start("refinement table", len(starts))
    chunks = []
    for first in range(0, len(starts), _CHUNK_STARTS):
        chosen = starts[first : first + _CHUNK_STARTS]
        chunks.append(_build_chunk(dataset, chosen, codebook, selector, settings, beta_1))
        progress.advance(first + len(chosen))
    progress.finish()
    return RefinementTable(
        **{name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _FIELD_NAMES}
    )


def _build_chunk(
    dataset: MarketDataset,
    starts: IndexArray,
    codebook: Codebook,
    selector: Selector,
    settings: RefinementSettings,
    beta_1: float,
) -> RefinementTable:
    batch = dataset.horizons(starts)
    codes = selector.choose_at(dataset, starts)
    base, _ = codebook.decode(batch.states, codes)
    notional = dataset.max_position * batch.mark[:, 0]
    table = adaptation_returns(
        base, batch.mark, batch.costs, max_position=dataset.max_position, override=settings.override
    )
    best = rank_adaptations(
        base,
        batch.mark,
        batch.costs,
        max_position=dataset.max_position,
        top=settings.top_adaptations,
        override=settings.override,
    )
    return RefinementTable(
        starts=starts,
        codes_embedding=codebook.embed(codes),
        base_actions=base,
        realised=realised_base_returns(table.base_rewards, notional, delay=dataset.execution_delay_bars),
        base_return=100 * table.base_return / notional,
        legal=table.legal,
        gains=adaptation_gains(table, notional).astype(np.float32),
        rewards=refinement_rewards(table, notional, beta_1=beta_1).astype(np.float32),
        targets=hindsight_targets(best, dataset.horizon_bars),
    )


_FIELD_NAMES: Final = tuple(field.name for field in fields(RefinementTable))
