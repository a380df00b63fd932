import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.rl.stopping import masked_log_probabilities, stopping_probabilities


def random_policy(seed: int, batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, steps, 3, generator=generator, dtype=torch.float64)
    legal = torch.rand(batch, steps, 2, generator=generator) < 0.6
    return logits, legal


def enumerated(log_probs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """P(tau, d) and P(never) from all 3^h step sequences of every horizon."""
    probs = log_probs.exp().numpy()
    batch, steps, _ = probs.shape
    acting, never = np.zeros((batch, steps, 2)), np.zeros(batch)
    for row in range(batch):
        for choices in itertools.product(range(3), repeat=steps):
            chance = np.prod([probs[row, step, choice] for step, choice in enumerate(choices)])
            stops = [step for step, choice in enumerate(choices) if choice != 1]
            if stops:
                acting[row, stops[0], choices[stops[0]] // 2] += chance
            else:
                never[row] += chance
    return acting, never


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_equals_enumeration_of_all_step_sequences(steps: int) -> None:
    logits, legal = random_policy(steps, batch=4, steps=steps)
    log_probs = masked_log_probabilities(logits, legal)
    acting, never = stopping_probabilities(log_probs)
    expected_acting, expected_never = enumerated(log_probs)
    np.testing.assert_allclose(acting.numpy(), expected_acting, rtol=0, atol=1e-12)
    np.testing.assert_allclose(never.numpy(), expected_never, rtol=0, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 80))
def test_probabilities_sum_to_one_and_never_touch_a_masked_cell(seed: int, steps: int) -> None:
    logits, legal = random_policy(seed, batch=3, steps=steps)
    acting, never = stopping_probabilities(masked_log_probabilities(logits, legal))
    assert (acting[~legal] == 0).all()
    torch.testing.assert_close(acting.sum((1, 2)) + never, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_stays_accurate_where_waiting_is_almost_impossible() -> None:
    logits = torch.tensor([[[0.0, -200.0, 0.0], [0.0, -200.0, 0.0], [2.0, 0.0, 0.0]]], dtype=torch.float64)
    acting, never = stopping_probabilities(masked_log_probabilities(logits, torch.ones(1, 3, 2, dtype=torch.bool)))
    assert acting[0, 2, 0] > 0
    assert never.item() > 0
    torch.testing.assert_close(acting[0, 0], torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_gradient_is_finite_where_everything_is_masked() -> None:
    logits = torch.zeros(2, 4, 3, dtype=torch.float64, requires_grad=True)
    legal = torch.zeros(2, 4, 2, dtype=torch.bool)
    legal[0, 2, 1] = True
    acting, never = stopping_probabilities(masked_log_probabilities(logits, legal))
    assert never[1].item() == 1.0
    acting.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[1] == 0).all()


def test_gradient_equals_finite_differences() -> None:
    logits, legal = random_policy(5, batch=2, steps=5)
    logits.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: stopping_probabilities(masked_log_probabilities(x, legal)), (logits,))


def test_refuses_shapes_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match=r"legal \(B, h, 2\), got \(2, 4, 3\) and \(2, 3, 2\)"):
        masked_log_probabilities(torch.zeros(2, 4, 3), torch.ones(2, 3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"log_probs must be \(B, h, 3\)"):
        stopping_probabilities(torch.zeros(4, 3))
