"""Probabilities of a policy that may act once per horizon: an optimal stopping problem in closed form.

At each step the policy chooses short, nothing or long; the first choice that is not nothing ends the
episode. Everything here is torch, differentiable and in log space.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

OVERRIDE_SHORT: Final = 0
NO_OVERRIDE: Final = 1
OVERRIDE_LONG: Final = 2


def masked_log_probabilities(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the step policy with illegal overrides at exactly zero probability.

    Args:
        logits: float (B, h, 3) over [short (-1), nothing (0), long (+1)].
        legal: bool (B, h, 2) over [short, long]; doing nothing is always legal.

    Returns:
        float (B, h, 3), -inf where illegal, normalised over the rest.

    Raises:
        ValueError: shapes that do not belong together.
    """
    if logits.ndim != 3 or logits.shape[-1] != 3 or legal.shape != (*logits.shape[:2], 2):
        raise ValueError(
            f"logits must be (B, h, 3) and legal (B, h, 2), got {tuple(logits.shape)} and {tuple(legal.shape)}"
        )
    nothing = torch.ones_like(legal[..., :1])
    allowed = torch.cat((legal[..., :1], nothing, legal[..., 1:]), dim=-1)
    return torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), dim=-1)


def stopping_log_probabilities(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log P(tau, d) of acting first at tau in direction d, and log P(never) of not acting at all.

    log P(tau, d) = log pi(d | tau) + sum over s < tau of log pi(0 | s).

    Args:
        log_probs: float (B, h, 3) over [short (-1), nothing (0), long (+1)], -inf where masked.

    Returns:
        float (B, h, 2) over directions [short, long], -inf where masked, and float (B,).

    Raises:
        ValueError: a last axis that is not 3.
    """
    if log_probs.ndim != 3 or log_probs.shape[-1] != 3:
        raise ValueError(f"log_probs must be (B, h, 3), got {tuple(log_probs.shape)}")
    waited = _running_sum(log_probs[..., NO_OVERRIDE])
    before = torch.cat((torch.zeros_like(waited[:, :1]), waited[:, :-1]), dim=-1)
    return log_probs[..., ::2] + before.unsqueeze(-1), waited[:, -1]


def stopping_probabilities(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """P(tau, d), float (B, h, 2), and P(never), float (B,); they sum to one for each horizon.

    Arguments and errors as in `stopping_log_probabilities`.
    """
    acting, never = stopping_log_probabilities(log_probs)
    return acting.exp(), never.exp()


def _running_sum(values: torch.Tensor) -> torch.Tensor:
    # torch.cumsum has no deterministic CUDA kernel for floats; this takes log2(h) additions.
    shift = 1
    while shift < values.shape[-1]:
        values = values + nn.functional.pad(values[..., :-shift], (shift, 0))
        shift *= 2
    return values
