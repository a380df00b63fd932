"""What the refiner sees of the base policy, and how its greedy choice becomes an override (Eq. 6)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from archetype_dagster.rl.stopping import NO_OVERRIDE, OVERRIDE_LONG, OVERRIDE_SHORT
from archetype_dagster.types import ActionArray, BoolArray, FloatArray, IndexArray, StateArray

_NUM_ACTIONS = 3


def context_size(code_dim: int) -> int:
    """Context size C for codes of `code_dim` dimensions: code, one-hot base action, R_arche, time left."""
    return code_dim + _NUM_ACTIONS + 2


def realised_base_returns(base_rewards: FloatArray, notional: FloatArray, *, delay: int) -> StateArray:
    """R_arche at each step: the base plan's rewards realised before it, in percent of notional.

    A reward r_i needs the mark one bar after its execution at row i + delay, so the sum at tau takes
    r_i with i + delay + 1 <= tau. (The paper's sum includes r_tau, which is not known at tau.)

    Args:
        base_rewards: float64 (B, h), step rewards of the base plan, quote units.
        notional: float64 (B,), m p_0 in quote units.
        delay: execution delay in bars.

    Returns:
        float32 (B, h).

    Raises:
        ValueError: a negative delay.
    """
    if delay < 0:
        raise ValueError(f"delay must not be negative, got delay={delay}")
    realised = np.zeros_like(base_rewards)
    late = delay + 1
    realised[:, late:] = np.cumsum(base_rewards, axis=1)[:, :-late]
    return (100 * realised / notional[:, np.newaxis]).astype(np.float32)


def assemble_context(codes_embedding: StateArray, base_actions: ActionArray, realised: StateArray) -> StateArray:
    """The context of every step: code embedding (D), one-hot base action (3), R_arche, (h - tau) / h.

    Args:
        codes_embedding: float32 (B, D).
        base_actions: int8 (B, h).
        realised: float32 (B, h), see `realised_base_returns`.

    Returns:
        float32 (B, h, D + 5).
    """
    batch, horizon = base_actions.shape
    code_dim = codes_embedding.shape[1]
    context = np.empty((batch, horizon, context_size(code_dim)), dtype=np.float32)
    context[..., :code_dim] = codes_embedding[:, np.newaxis]
    context[..., code_dim : code_dim + _NUM_ACTIONS] = np.eye(_NUM_ACTIONS, dtype=np.float32)[base_actions]
    context[..., -2] = realised
    context[..., -1] = (horizon - np.arange(horizon)) / horizon
    return context


def refinement_context(
    codes_embedding: StateArray,
    base_actions: ActionArray,
    base_rewards: FloatArray,
    notional: FloatArray,
    *,
    delay: int,
) -> StateArray:
    """The refiner's context: [z_q, one-hot a_base, R_arche / (m p_0) in percent, (h - tau) / h], causal.

    Args:
        codes_embedding: float32 (B, D), embedding z_q of each horizon's code.
        base_actions: int8 (B, h), decoded actions.
        base_rewards: float64 (B, h), their step rewards in quote units.
        notional: float64 (B,), m p_0 in quote units.
        delay: execution delay in bars.

    Returns:
        float32 (B, h, C) with C = `context_size(D)`; row tau holds only what was known at tau.

    Raises:
        ValueError: shapes that do not belong together, or a negative delay.
    """
    if (
        base_actions.ndim != 2
        or base_rewards.shape != base_actions.shape
        or codes_embedding.ndim != 2
        or not len(codes_embedding) == len(base_actions) == len(notional)
    ):
        raise ValueError(
            "codes_embedding must be (B, D), base_actions and base_rewards (B, h) and notional (B,), "
            f"got {codes_embedding.shape}, {base_actions.shape}, {base_rewards.shape} and {notional.shape}"
        )
    realised = realised_base_returns(base_rewards, notional, delay=delay)
    return assemble_context(codes_embedding, base_actions, realised)


def greedy_override(logits: NDArray[np.float32] | torch.Tensor, legal: BoolArray) -> tuple[IndexArray, ActionArray]:
    """The first step where a legal direction's logit exceeds that of doing nothing.

    Ties go to doing nothing, then to short.

    Args:
        logits: float (B, h, 3) over [short (-1), nothing (0), long (+1)].
        legal: bool (B, h, 2) over [short, long], see `planning.adaptations.legal_override_mask`.

    Returns:
        steps int64 (B,), -1 for none, and directions int8 (B,), -1 short, +1 long, 0 for none: what
        `planning.adaptations.apply_override` takes.

    Raises:
        ValueError: shapes that do not belong together.
    """
    values = logits.detach().cpu().numpy() if isinstance(logits, torch.Tensor) else logits
    if values.ndim != 3 or values.shape[-1] != 3 or legal.shape != (*values.shape[:2], 2):
        raise ValueError(f"logits must be (B, h, 3) and legal (B, h, 2), got {values.shape} and {legal.shape}")
    overrides = np.where(legal, values[..., [OVERRIDE_SHORT, OVERRIDE_LONG]], -np.inf)
    acts = overrides.max(axis=-1) > values[..., NO_OVERRIDE]
    step = acts.argmax(axis=1)
    happens = acts.any(axis=1)
    longer = overrides.argmax(axis=-1)[np.arange(len(step)), step]
    steps = np.where(happens, step, -1)
    return steps, np.where(happens, 2 * longer - 1, 0).astype(np.int8)
