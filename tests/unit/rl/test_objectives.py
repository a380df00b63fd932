import itertools
import math

import pytest
import torch

from archetype_dagster.rl.objectives import hindsight_cross_entropy, refinement_objective, selection_objective
from archetype_dagster.rl.stopping import masked_log_probabilities


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def refinement_case(steps: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (3, h, 3), legal (3, h, 2), rewards (3, h, 2), targets (3, h, 3); the last horizon has no target."""
    generator = torch.Generator().manual_seed(11)
    legal = torch.rand(3, steps, 2, generator=generator) < 0.6
    legal[:2, 1, 1] = legal[:2, 3, 0] = True
    rewards = normal(2, 3, steps, 2) * legal
    targets = torch.zeros(3, steps, 3, dtype=torch.float64)
    targets[:2, 0, 1] = 1
    targets[:2, 1] = torch.tensor([0, 0.5, 0.5], dtype=torch.float64)
    targets[:2, 2, 1] = 0.5
    targets[:2, 3, 0] = 0.5
    targets[2, :, 1] = 1
    return normal(1, 3, steps, 3), legal, rewards, targets


def test_selection_equals_the_sum_over_codes_written_out() -> None:
    logits, returns, labels = normal(0, 4, 3), normal(1, 4, 3), torch.tensor([0, 2, 1, 2])
    value, parts = selection_objective(logits, returns, labels, alpha=0.7)
    total = 0.0
    for row in range(4):
        weights = [math.exp(logits[row, code].item()) for code in range(3)]
        policy = [weight / sum(weights) for weight in weights]
        kl = sum((1.0 if code == labels[row] else 0.0) * math.log(1 / policy[code]) for code in range(3))
        total += sum(p * returns[row, code].item() for code, p in enumerate(policy)) - 0.7 * kl
    assert value.item() == pytest.approx(total / 4, abs=1e-12)
    assert (parts["expected_return"] - 0.7 * parts["kl"]).item() == pytest.approx(value.item(), abs=1e-12)


def test_selection_gradient_equals_finite_differences() -> None:
    returns, labels = normal(1, 4, 3), torch.tensor([0, 2, 1, 2])
    logits = normal(0, 4, 3).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: selection_objective(x, returns, labels, 0.7)[0], (logits,))


def test_refinement_equals_enumeration_of_all_step_sequences() -> None:
    logits, legal, rewards, targets = refinement_case()
    log_probs = masked_log_probabilities(logits, legal)
    value, parts = refinement_objective(log_probs, rewards, targets, gamma=0.9, beta_2=0.3)
    probs = log_probs.exp()
    expected = 0.0
    for row in range(3):
        for choices in itertools.product(range(3), repeat=5):
            chance = math.prod(probs[row, step, choice].item() for step, choice in enumerate(choices))
            stop = next((step for step, choice in enumerate(choices) if choice != 1), None)
            if stop is not None:
                expected += chance * 0.9**stop * rewards[row, stop, choices[stop] // 2].item() / 3
    cross_entropy = -sum(
        targets[row, step, choice].item() * log_probs[row, step, choice].item()
        for row, step, choice in itertools.product(range(3), range(5), range(3))
        if targets[row, step, choice] > 0
    ) / (3 * 5)
    assert parts["expected_reward"].item() == pytest.approx(expected, abs=1e-12)
    assert parts["cross_entropy"].item() == pytest.approx(cross_entropy, abs=1e-12)
    assert value.item() == pytest.approx(expected - 0.3 * cross_entropy, abs=1e-12)


def test_refinement_gradient_equals_finite_differences() -> None:
    logits, legal, rewards, targets = refinement_case()
    logits.requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda x: refinement_objective(masked_log_probabilities(x, legal), rewards, targets, gamma=0.9, beta_2=0.3)[0],
        (logits,),
    )


def test_cross_entropy_of_one_target_is_the_log_likelihood_of_stopping_there() -> None:
    logits, _, _, _ = refinement_case()
    log_probs = masked_log_probabilities(logits, torch.ones(3, 5, 2, dtype=torch.bool))
    targets = torch.zeros(3, 5, 3, dtype=torch.float64)
    targets[:, :2, 1] = 1
    targets[:, 2, 2] = 1
    waiting_then_long = log_probs[:, 0, 1] + log_probs[:, 1, 1] + log_probs[:, 2, 2]
    torch.testing.assert_close(hindsight_cross_entropy(log_probs, targets), -waiting_then_long.mean() / 5)


def test_climbing_the_exact_gradient_finds_the_only_profitable_override() -> None:
    logits = torch.zeros(1, 6, 3, dtype=torch.float64, requires_grad=True)
    legal = torch.ones(1, 6, 2, dtype=torch.bool)
    rewards = torch.full((1, 6, 2), -1.0, dtype=torch.float64)
    rewards[0, 3, 1] = 1.0
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(400):
        value, _ = refinement_objective(
            masked_log_probabilities(logits, legal), rewards, torch.zeros(1, 6, 3), gamma=1.0, beta_2=0.0
        )
        optimizer.zero_grad()
        (-value).backward()
        optimizer.step()
    assert value.item() == pytest.approx(1.0, abs=0.05)
    assert logits[0].argmax(-1).tolist()[:4] == [1, 1, 1, 2]


def test_refuses_shapes_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match=r"returns must be \(B, K\)"):
        selection_objective(torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), 1.0)
    with pytest.raises(ValueError, match=r"rewards \(B, h, 2\)"):
        refinement_objective(torch.zeros(2, 4, 3), torch.zeros(2, 4), torch.zeros(2, 4, 3), gamma=1.0, beta_2=1.0)
