"""Proximal policy optimisation on tables whose returns are known: pure functions for both phases.

A rollout is B episodes of at most T steps. Episodes of Phase II have one step (choose a code);
those of Phase III end at the first override or at the horizon's end. Sums over an episode's steps are
weighted with gamma^t, so at a ratio of one the surrogate's gradient is an unbiased estimate of the exact
objective's. Advantages stay in percent of notional for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from archetype_dagster.rl.objectives import Parts, discounts
from archetype_dagster.rl.stopping import NO_OVERRIDE
from archetype_dagster.settings import PpoSettings


@dataclass(frozen=True)
class Rollout:
    """B sampled episodes of at most T steps.

    Attributes:
        actions: int64 (B, T), sampled choices.
        log_probs: float (B, T), their log-probabilities under the policy that sampled them.
        advantages: float (B, T), percent of notional.
        value_targets: float (B, T), percent of notional.
        weights: float (B, T), gamma^t inside the episode and 0 after its end.
    """

    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    value_targets: torch.Tensor
    weights: torch.Tensor


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, done: torch.Tensor, *, gamma: float, gae_lambda: float
) -> torch.Tensor:
    """Generalised advantage estimates A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}.

    delta_t = r_t + gamma (1 - done_t) V_{t+1} - V_t. The last step always ends its episode.

    Args:
        rewards: float (B, T).
        values: float (B, T), V of the state each step is taken in.
        done: bool (B, T), True where the episode ends with that step.
        gamma: discount per step.
        gae_lambda: 0 for one-step advantages, 1 for returns minus values.

    Returns:
        float (B, T).

    Raises:
        ValueError: shapes that differ.
    """
    if rewards.ndim != 2 or values.shape != rewards.shape or done.shape != rewards.shape:
        raise ValueError(
            "rewards, values and done must all be (B, T), "
            f"got {tuple(rewards.shape)}, {tuple(values.shape)} and {tuple(done.shape)}"
        )
    goes_on = (~done).to(rewards.dtype)
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(following)
    for step in reversed(range(rewards.shape[1])):
        delta = rewards[:, step] + gamma * goes_on[:, step] * next_value - values[:, step]
        following = delta + gamma * gae_lambda * goes_on[:, step] * following
        advantages[:, step] = following
        next_value = values[:, step]
    return advantages


def clipped_surrogate(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, *, clip_range: float
) -> torch.Tensor:
    """min(rho A, clip(rho, 1 - clip_range, 1 + clip_range) A) with rho = exp(log_probs - old_log_probs).

    Elementwise; all three float tensors have one shape.
    """
    ratio = (log_probs - old_log_probs).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * advantages)


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy in nats over the last axis of log-probabilities, which may be -inf: float (..., A) -> (...)."""
    return -(log_probs.exp() * log_probs.masked_fill(torch.isneginf(log_probs), 0.0)).sum(-1)


def value_loss(values: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the critic over the steps with weight: float (B, T) each -> scalar."""
    inside = (weights > 0).to(values.dtype)
    return ((values - targets).square() * inside).sum() / inside.sum()


def ppo_objective(
    log_probs: torch.Tensor, values: torch.Tensor, rollout: Rollout, settings: PpoSettings
) -> tuple[torch.Tensor, Parts]:
    """Clipped surrogate - value_weight * value loss + entropy_weight * entropy, to maximise.

    The surrogate is summed over an episode's steps and averaged over episodes; the value loss and the
    entropy are means over the steps inside episodes.

    Args:
        log_probs: float (B, T, A), current policy, -inf where masked.
        values: float (B, T), current critic.
        rollout: the sampled episodes.
        settings: clipping range and weights.

    Returns:
        scalar, and the parts `surrogate`, `value_loss`, `entropy` and `clipped` (share of steps).
    """
    taken = log_probs.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    gains = clipped_surrogate(taken, rollout.log_probs, rollout.advantages, clip_range=settings.clip_range)
    surrogate = (gains * rollout.weights).sum(-1).mean()
    inside = (rollout.weights > 0).to(values.dtype)
    critic = value_loss(values, rollout.value_targets, rollout.weights)
    uncertainty = (entropy(log_probs) * inside).sum() / inside.sum()
    moved = ((taken - rollout.log_probs).exp() - 1).abs() > settings.clip_range
    objective = surrogate - settings.value_weight * critic + settings.entropy_weight * uncertainty
    return objective, {
        "surrogate": surrogate,
        "value_loss": critic,
        "entropy": uncertainty,
        "clipped": (moved * inside).sum() / inside.sum(),
    }


def sample_codes(
    log_probs: torch.Tensor, values: torch.Tensor, returns: torch.Tensor, generator: torch.Generator
) -> Rollout:
    """One-step episodes: a code drawn for each horizon, paid its return from the table.

    Args:
        log_probs: float (B, K).
        values: float (B,).
        returns: float (B, K), percent of notional.
        generator: CPU generator of the draws.

    Returns:
        a rollout with T = 1.
    """
    codes = _draw(log_probs, generator).unsqueeze(-1)
    rewards = returns.gather(-1, codes)
    ends = torch.ones_like(codes, dtype=torch.bool)
    advantages = generalised_advantages(rewards, values.unsqueeze(-1), ends, gamma=1.0, gae_lambda=1.0)
    return Rollout(codes, log_probs.gather(-1, codes), advantages, rewards, torch.ones_like(rewards))


def sample_stopping(
    log_probs: torch.Tensor,
    values: torch.Tensor,
    rewards: torch.Tensor,
    generator: torch.Generator,
    *,
    gamma: float,
    gae_lambda: float,
) -> Rollout:
    """Episodes of Phase III: step choices until the first override, paid r_ref from the table.

    The path up to the first override does not depend on the choices, so all h steps are drawn at once.

    Args:
        log_probs: float (B, h, 3) over [short, nothing, long], -inf where masked.
        values: float (B, h).
        rewards: float (B, h, 2), r_ref of Eq. (8) over [short, long].
        generator: CPU generator of the draws.
        gamma: discount per bar.
        gae_lambda: lambda of the advantages.

    Returns:
        a rollout with T = h.
    """
    actions = _draw(log_probs, generator)
    acts = actions != NO_OVERRIDE
    inside = torch.cumsum(acts, dim=-1) - acts.long() == 0
    by_choice = torch.stack((rewards[..., 0], torch.zeros_like(values), rewards[..., 1]), dim=-1)
    paid = by_choice.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    advantages = generalised_advantages(paid, values, acts, gamma=gamma, gae_lambda=gae_lambda)
    weights = inside * discounts(values.shape[1], gamma, like=values)
    taken = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return Rollout(actions, taken, advantages, advantages + values, weights)


def _draw(log_probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # Drawn on the CPU so that a seed gives the same choices on every device.
    choices = torch.multinomial(log_probs.exp().cpu().flatten(0, -2), 1, generator=generator)
    return choices.view(log_probs.shape[:-1]).to(log_probs.device)
