import itertools

import pytest
import torch

from archetype_dagster.rl.objectives import refinement_objective, selection_objective
from archetype_dagster.rl.ppo import (
    Rollout,
    clipped_surrogate,
    entropy,
    generalised_advantages,
    ppo_objective,
    sample_codes,
    sample_stopping,
    value_loss,
)
from archetype_dagster.rl.stopping import masked_log_probabilities
from archetype_dagster.settings import PpoSettings

SURROGATE_ONLY = PpoSettings(value_weight=0, entropy_weight=0)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_advantages_equal_a_hand_calculation() -> None:
    rewards = torch.tensor([[1.0, 0.0, 2.0]])
    values = torch.tensor([[0.5, 0.25, 1.0]])
    done = torch.tensor([[False, False, True]])
    last = 2.0 - 1.0
    middle = 0.0 + 0.5 * 1.0 - 0.25 + 0.5 * 0.8 * last
    first = 1.0 + 0.5 * 0.25 - 0.5 + 0.5 * 0.8 * middle
    result = generalised_advantages(rewards, values, done, gamma=0.5, gae_lambda=0.8)
    torch.testing.assert_close(result, torch.tensor([[first, middle, last]]))


def test_advantages_do_not_look_past_an_episodes_end() -> None:
    rewards, values = normal(0, 2, 5), normal(1, 2, 5)
    done = torch.zeros(2, 5, dtype=torch.bool)
    done[:, 2] = True
    whole = generalised_advantages(rewards, values, done, gamma=0.9, gae_lambda=0.7)
    alone = generalised_advantages(rewards[:, :3], values[:, :3], done[:, :3], gamma=0.9, gae_lambda=0.7)
    torch.testing.assert_close(whole[:, :3], alone, rtol=0, atol=0)


def test_surrogate_clips_only_what_would_gain() -> None:
    log_ratio = torch.tensor([0.0, 1.0, -1.0, 1.0, -1.0])
    advantages = torch.tensor([2.0, 1.0, 1.0, -1.0, -1.0])
    result = clipped_surrogate(log_ratio, torch.zeros(5), advantages, clip_range=0.2)
    e = torch.e
    torch.testing.assert_close(result, torch.tensor([2.0, 1.2, 1 / e, -e, -0.8]))


def test_entropy_of_a_masked_choice_counts_the_legal_ones() -> None:
    log_probs = torch.log_softmax(torch.tensor([0.0, -torch.inf, 0.0], requires_grad=True), dim=-1)
    value = entropy(log_probs)
    value.backward()
    assert value.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


def test_value_loss_ignores_steps_after_the_end() -> None:
    values, targets = torch.tensor([[1.0, 5.0]]), torch.tensor([[0.0, -7.0]])
    assert value_loss(values, targets, torch.tensor([[1.0, 0.0]])).item() == 1.0


def test_surrogate_gradient_averaged_over_codes_is_the_exact_selection_gradient() -> None:
    logits, values, returns = normal(0, 1, 4).requires_grad_(True), normal(1, 1), normal(2, 1, 4)
    labels = torch.tensor([1])
    exact = torch.autograd.grad(selection_objective(logits, returns, labels, alpha=0.0)[0], logits)[0]
    log_probs = torch.log_softmax(logits, dim=-1)
    averaged = torch.zeros_like(exact)
    for code in range(4):
        chosen = torch.tensor([[code]])
        old = log_probs.detach().gather(-1, chosen)
        reward = returns.gather(-1, chosen)
        rollout = Rollout(chosen, old, reward - values.unsqueeze(-1), reward, torch.ones_like(reward))
        value, _ = ppo_objective(log_probs.unsqueeze(1), values.unsqueeze(-1), rollout, SURROGATE_ONLY)
        averaged += old.exp() * torch.autograd.grad(value, logits, retain_graph=True)[0]
    torch.testing.assert_close(averaged, exact, rtol=0, atol=1e-12)


def test_surrogate_gradient_averaged_over_episodes_is_the_exact_refinement_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, values, rewards = normal(0, 1, 3, 3).requires_grad_(True), normal(1, 1, 3), normal(2, 1, 3, 2)
    legal = torch.tensor([[[True, True], [True, False], [True, True]]])
    rewards = rewards * legal
    log_probs = masked_log_probabilities(logits, legal)
    exact_value, _ = refinement_objective(log_probs, rewards, torch.zeros(1, 3, 3), gamma=0.8, beta_2=0.0)
    exact = torch.autograd.grad(exact_value, logits, retain_graph=True)[0]
    averaged = torch.zeros_like(exact)
    for choices in itertools.product(range(3), repeat=3):
        chance = torch.stack([log_probs[0, step, choice] for step, choice in enumerate(choices)]).sum().exp().detach()
        if chance == 0:
            continue
        monkeypatch.setattr("archetype_dagster.rl.ppo._draw", lambda *_, drawn=choices: torch.tensor([drawn]))
        rollout = sample_stopping(log_probs.detach(), values, rewards, torch.Generator(), gamma=0.8, gae_lambda=1.0)
        value, _ = ppo_objective(log_probs, values, rollout, SURROGATE_ONLY)
        averaged += chance * torch.autograd.grad(value, logits, retain_graph=True)[0]
    torch.testing.assert_close(averaged, exact, rtol=0, atol=1e-12)


def test_sampled_stopping_is_legal_paid_once_and_weighted_until_its_end() -> None:
    logits = normal(0, 200, 6, 3)
    legal = torch.rand(200, 6, 2, generator=torch.Generator().manual_seed(1)) < 0.4
    rewards = torch.ones(200, 6, 2, dtype=torch.float64) * legal
    log_probs = masked_log_probabilities(logits, legal)
    zeros = torch.zeros(200, 6, dtype=torch.float64)
    rollout = sample_stopping(log_probs, zeros, rewards, torch.Generator().manual_seed(2), gamma=1.0, gae_lambda=1.0)
    assert torch.isfinite(rollout.log_probs).all()
    acts = (rollout.actions != 1) & (rollout.weights > 0)
    assert acts.sum(-1).max() == 1
    torch.testing.assert_close(rollout.value_targets[:, 0], acts.any(-1).double())
    ends = torch.where(acts.any(-1), acts.long().argmax(-1) + 1, 6)
    assert torch.equal((rollout.weights > 0).sum(-1), ends)


def test_codes_are_drawn_with_their_probabilities_and_paid_from_the_table() -> None:
    log_probs = torch.log(torch.tensor([0.7, 0.2, 0.1])).expand(20_000, 3)
    returns = torch.tensor([1.0, 2.0, 3.0]).expand(20_000, 3)
    rollout = sample_codes(log_probs, torch.zeros(20_000), returns, torch.Generator().manual_seed(0))
    shares = torch.bincount(rollout.actions[:, 0], minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.7, 0.2, 0.1]), rtol=0, atol=0.015)
    assert torch.equal(rollout.advantages, rollout.actions + 1.0)
