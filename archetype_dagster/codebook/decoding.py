"""From logits to actions: free argmax, or at most one change of position a horizon."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archetype_dagster.settings import Decoding
from archetype_dagster.types import FLAT, LONG, SHORT, ActionArray

Logits = Tensor | NDArray[np.float32] | NDArray[np.float64]


def decode_actions(logits: Logits, decoding: Decoding, *, hindsight: bool) -> ActionArray:
    """Actions int8 (..., h) of logits (..., h, 3) over whole horizons.

    `argmax` takes the most likely action of each step; ties go to the lower action. `single_change`
    starts flat and changes at most once. Without hindsight it is online: the first argmax that is not
    flat is held to the end. With hindsight it is the split of highest likelihood: flat before it, one
    direction from it on; ties go to flat, then to the earlier split, then to short.

    Raises:
        ValueError: wrong shape or unknown decoding.
    """
    scores = torch.as_tensor(logits).detach()
    if scores.ndim < 2 or scores.shape[-1] != 3:
        raise ValueError(f"logits must have shape (..., h, 3), got {tuple(scores.shape)}")
    if decoding == "argmax":
        actions = scores.argmax(dim=-1)
    elif decoding == "single_change":
        actions = _best_split(scores) if hindsight else _hold_first_change(scores.argmax(dim=-1))
    else:
        raise ValueError(f"decoding must be 'argmax' or 'single_change', got decoding={decoding!r}")
    result: ActionArray = actions.to(torch.int8).cpu().numpy()
    return result


def decode_step(logits: Logits, previous: ActionArray, decoding: Decoding) -> ActionArray:
    """Actions int8 (B,) of one bar, equal to `decode_actions` of a causal decoder step by step.

    Args:
        logits: (B, 3) of this bar.
        previous: int8 (B,), the decoder's own actions at the bar before; flat at a horizon's first bar.
        decoding: as in `decode_actions`.
    """
    free = decode_actions(torch.as_tensor(logits).unsqueeze(-2), "argmax", hindsight=False)[..., 0]
    return np.where(previous != FLAT, previous, free) if decoding == "single_change" else free


def _hold_first_change(free: Tensor) -> Tensor:
    changed = free != FLAT
    first = changed.to(torch.int8).argmax(dim=-1, keepdim=True)
    steps = torch.arange(free.shape[-1], device=free.device)
    return torch.where(changed.any(dim=-1, keepdim=True) & (steps >= first), free.gather(-1, first), FLAT)


def _best_split(scores: Tensor) -> Tensor:
    """The log-likelihood gained over all-flat by direction d from step s on is a suffix sum of logit differences."""
    exact = scores.to(torch.float64)
    gain = torch.stack([exact[..., SHORT], exact[..., LONG]], dim=-1) - exact[..., FLAT, None]
    suffix = gain.flip(-2).cumsum(dim=-2).flip(-2)
    best, index = suffix.flatten(start_dim=-2).max(dim=-1, keepdim=True)
    split, direction = index // 2, torch.where(index % 2 == 0, SHORT, LONG)
    steps = torch.arange(scores.shape[-2], device=scores.device)
    return torch.where((best > 0) & (steps >= split), direction, FLAT)
