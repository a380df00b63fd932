import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.refinement.adapter import context_size, greedy_override, refinement_context


def context_case(seed: int, delay: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(3, 4)).astype(np.float32)
    actions = rng.integers(0, 3, (3, 7)).astype(np.int8)
    rewards, notional = rng.normal(size=(3, 7)), rng.uniform(50, 100, 3)
    return embedding, actions, rewards, notional


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_context_holds_code_action_realised_return_and_time_left(delay: int) -> None:
    embedding, actions, rewards, notional = context_case(0, delay)
    context = refinement_context(embedding, actions, rewards, notional, delay=delay)
    assert context.shape == (3, 7, context_size(4))
    assert context.dtype == np.float32
    for row in range(3):
        for tau in range(7):
            realised = 100 * sum(rewards[row, i] for i in range(7) if i < tau - delay) / notional[row]
            expected = [*embedding[row], *np.eye(3)[actions[row, tau]], realised, (7 - tau) / 7]
            np.testing.assert_allclose(context[row, tau], expected, rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 1000), delay=st.integers(0, 3), cut=st.integers(0, 6))
def test_context_up_to_a_step_ignores_everything_realised_later(seed: int, delay: int, cut: int) -> None:
    embedding, actions, rewards, notional = context_case(seed, delay)
    later_rewards, later_actions = rewards.copy(), actions.copy()
    later_rewards[:, max(cut - delay, 0) :] += 1e6
    later_actions[:, cut + 1 :] = 2 - later_actions[:, cut + 1 :]
    before = refinement_context(embedding, actions, rewards, notional, delay=delay)
    after = refinement_context(embedding, later_actions, later_rewards, notional, delay=delay)
    np.testing.assert_array_equal(before[:, : cut + 1], after[:, : cut + 1])


def test_context_refuses_shapes_that_do_not_belong_together() -> None:
    embedding, actions, rewards, notional = context_case(0, 0)
    with pytest.raises(ValueError, match=r"got \(3, 4\), \(3, 7\), \(3, 6\) and \(3,\)"):
        refinement_context(embedding, actions, rewards[:, :-1], notional, delay=0)
    with pytest.raises(ValueError, match="delay=-1"):
        refinement_context(embedding, actions, rewards, notional, delay=-1)


def test_greedy_override_is_the_first_legal_step_that_beats_doing_nothing() -> None:
    logits = np.zeros((4, 5, 3), dtype=np.float32)
    legal = np.ones((4, 5, 2), dtype=np.bool_)
    logits[0, 1], legal[0, 1] = [5, 0, 9], False  # nothing is legal here
    logits[0, 3] = [1, 0, 3]
    logits[1, 2], legal[1, 2, 1] = [1, 0, 3], False  # long is not legal here
    logits[2, 4] = [2, 0, 2]
    steps, directions = greedy_override(logits, legal)
    assert steps.tolist() == [3, 2, 4, -1]
    assert directions.tolist() == [1, -1, -1, 0]
    assert (steps.dtype, directions.dtype) == (np.int64, np.int8)
    from_tensor = greedy_override(torch.from_numpy(logits), legal)
    np.testing.assert_array_equal(from_tensor, (steps, directions))


def test_greedy_override_prefers_doing_nothing_in_a_tie() -> None:
    steps, _ = greedy_override(np.ones((2, 3, 3), dtype=np.float32), np.ones((2, 3, 2), dtype=np.bool_))
    assert steps.tolist() == [-1, -1]


def test_greedy_override_refuses_a_mask_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"legal \(B, h, 2\), got \(2, 3, 3\) and \(2, 3, 3\)"):
        greedy_override(np.ones((2, 3, 3), dtype=np.float32), np.ones((2, 3, 3), dtype=np.bool_))
