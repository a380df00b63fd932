"""A horizon's base actions: what a selector chooses at its first bar, run by the frozen decoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.selector import Selector
from archetype_dagster.types import ActionArray, IndexArray, StateArray


@dataclass(frozen=True)
class BasePlan:
    """The choice of n horizons and the actions it decodes to.

    Attributes:
        scores: float32 (n, K), code logits; (n, D), the embeddings themselves, where they are continuous.
        codes: int64 (n,), archetypes; -1 where the embeddings are continuous.
        actions: int8 (n, h).
        logits: float32 (n, h, 3), the decoder's.
    """

    scores: NDArray[np.float32]
    codes: IndexArray
    actions: ActionArray
    logits: NDArray[np.float32]


def base_plan(
    codebook: Codebook,
    selector: Selector | ContinuousSelector,
    dataset: MarketDataset,
    starts: IndexArray,
    states: StateArray,
    *,
    codes: IndexArray | None = None,
) -> BasePlan:
    """Choose by what is known on the first bar of each horizon and decode.

    Args:
        codebook: the frozen decoder.
        selector: the frozen selector.
        dataset: rows the horizons begin on.
        starts: int64 (n,), those rows.
        states: float32 (n, h, F), the horizons' own.
        codes: int64 (n,), archetypes to use instead of the selector's choice.

    Raises:
        ValueError: codes that are not one per horizon, or given where embeddings are continuous.
    """
    if isinstance(selector, ContinuousSelector):
        if codes is not None:
            raise ValueError(f"a continuous selector takes no codes, got {len(codes)}")
        embeddings = selector.choose_at(dataset, starts)
        actions, logits = codebook.decode_embeddings(states, embeddings[:, np.newaxis])
        return BasePlan(embeddings, np.full(len(starts), -1, dtype=np.int64), actions[:, 0], logits[:, 0])
    scores = selector.logits_at(dataset, starts)
    chosen = scores.argmax(axis=1).astype(np.int64) if codes is None else np.asarray(codes, dtype=np.int64)
    if chosen.shape != starts.shape:
        raise ValueError(f"codes must hold one archetype per horizon, got shape {chosen.shape} for {len(starts)}")
    return BasePlan(scores, chosen, *codebook.decode(states, chosen))
