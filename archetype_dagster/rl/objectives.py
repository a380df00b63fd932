"""The exact objectives of Phases II and III: full information, no sampling, exact gradients.

Both return the scalar to maximise and its parts, each a mean over the batch. Returns are in percent
of the notional m p_0. What is sampled instead lies in `ppo`.
"""

from __future__ import annotations

import torch

from archetype_dagster.rl.stopping import stopping_probabilities

Parts = dict[str, torch.Tensor]


def label_divergence(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """KL(label || pi) of Eq. (5) for a label that is one code: -log pi(label).

    Args:
        log_probs: float (B, K), log-probabilities of the codes.
        labels: int64 (B,), codes.

    Returns:
        float scalar, mean over B.
    """
    return -log_probs.gather(-1, labels.unsqueeze(-1)).mean()


def selection_objective(
    logits: torch.Tensor, returns: torch.Tensor, labels: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, Parts]:
    """Eq. (5) with its expectation taken exactly: mean over B of sum_k pi(k|s) R[s, k] - alpha KL(label || pi).

    Args:
        logits: float (B, K).
        returns: float (B, K), horizon return of each code, percent of notional.
        labels: int64 (B,), the encoder's code of the demonstration.
        alpha: weight of the KL term.

    Returns:
        scalar to maximise, and the parts `expected_return` (percent), `kl` and `entropy` (nats).

    Raises:
        ValueError: shapes that do not belong together.
    """
    if logits.ndim != 2 or returns.shape != logits.shape or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits and returns must be (B, K) and labels (B,), "
            f"got {tuple(logits.shape)}, {tuple(returns.shape)} and {tuple(labels.shape)}"
        )
    log_probs = torch.log_softmax(logits, dim=-1)
    probabilities = log_probs.exp()
    expected = (probabilities * returns).sum(-1).mean()
    divergence = label_divergence(log_probs, labels)
    uncertainty = -(probabilities * log_probs).sum(-1).mean()
    return expected - alpha * divergence, {"expected_return": expected, "kl": divergence, "entropy": uncertainty}


def hindsight_cross_entropy(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of Eq. (9) between the hindsight target sequences and the step policy, mean per step.

    Args:
        log_probs: float (B, h, 3), -inf where masked.
        targets: float (B, h, 3), target weights; zero where masked. A step's weights sum to the share
            of the target sequences that have not ended before it.

    Returns:
        float scalar: -sum of weights times log-probabilities over the h steps, divided by h, mean over B.
    """
    finite = log_probs.masked_fill(targets == 0, 0.0)
    return -(targets * finite).sum(-1).mean()


def refinement_objective(
    log_probs: torch.Tensor, rewards: torch.Tensor, targets: torch.Tensor, *, gamma: float, beta_2: float
) -> tuple[torch.Tensor, Parts]:
    """Eq. (9) exactly: J' = sum over (tau, d) of P(tau, d) gamma^tau r_ref(tau, d) - beta_2 CE, mean over B.

    Args:
        log_probs: float (B, h, 3) over [short, nothing, long], -inf where masked.
        rewards: float (B, h, 2), r_ref of Eq. (8) over [short, long], percent of notional, 0 where masked.
        targets: float (B, h, 3), see `hindsight_cross_entropy`.
        gamma: discount per bar.
        beta_2: weight of the cross-entropy.

    Returns:
        scalar to maximise, and the parts `expected_reward` (percent), `cross_entropy` (nats per step)
        and `override_rate` (probability of acting at all).

    Raises:
        ValueError: shapes that do not belong together.
    """
    if rewards.shape != (*log_probs.shape[:2], 2) or targets.shape != log_probs.shape:
        raise ValueError(
            "log_probs and targets must be (B, h, 3) and rewards (B, h, 2), "
            f"got {tuple(log_probs.shape)}, {tuple(targets.shape)} and {tuple(rewards.shape)}"
        )
    acting, never = stopping_probabilities(log_probs)
    discount = discounts(log_probs.shape[1], gamma, like=rewards)
    expected = (acting * rewards * discount.unsqueeze(-1)).sum((-1, -2)).mean()
    cross_entropy = hindsight_cross_entropy(log_probs, targets)
    return expected - beta_2 * cross_entropy, {
        "expected_reward": expected,
        "cross_entropy": cross_entropy,
        "override_rate": (1 - never).mean(),
    }


def discounts(steps: int, gamma: float, *, like: torch.Tensor) -> torch.Tensor:
    """gamma^0 .. gamma^(steps - 1) as a vector of the dtype and device of `like`."""
    return gamma ** torch.arange(steps, dtype=like.dtype, device=like.device)
