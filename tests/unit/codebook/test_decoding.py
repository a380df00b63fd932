import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from archetype_dagster.codebook import decode_actions, decode_step
from archetype_dagster.types import FLAT, LONG, SHORT

# Halves and ties on purpose: sums of them are exact, so brute force and suffix sums agree to the last bit.
LOGITS = arrays(np.float64, (3, 6, 3), elements=st.integers(-4, 4).map(lambda value: value / 2))


def step_by_step(logits: np.ndarray, decoding: str) -> np.ndarray:
    previous = np.full(len(logits), FLAT, dtype=np.int8)
    actions = []
    for t in range(logits.shape[1]):
        previous = decode_step(logits[:, t], previous, decoding)
        actions.append(previous)
    return np.stack(actions, axis=1)


def best_split(logits: np.ndarray) -> np.ndarray:
    log_probabilities = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    steps = len(logits)
    plans = [np.full(steps, FLAT)]
    plans += [np.where(np.arange(steps) < split, FLAT, side) for split in range(steps) for side in (SHORT, LONG)]
    likelihoods = [log_probabilities[np.arange(steps), plan].sum() for plan in plans]
    return plans[int(np.argmax(np.round(likelihoods, 9)))]


def test_argmax_takes_the_likeliest_action_and_the_lower_one_of_equals() -> None:
    logits = np.array([[[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [2.0, 1.0, 2.0], [0.0, 0.0, 0.1]]])
    assert decode_actions(logits, "argmax", hindsight=False).tolist() == [[SHORT, FLAT, SHORT, LONG]]
    assert decode_actions(logits, "argmax", hindsight=False).dtype == np.int8


def test_online_single_change_holds_the_first_position_it_takes() -> None:
    free = [FLAT, LONG, SHORT, FLAT, SHORT]
    logits = np.eye(3)[free][None]
    assert decode_actions(logits, "single_change", hindsight=False).tolist() == [[FLAT, LONG, LONG, LONG, LONG]]


@pytest.mark.parametrize("decoding", ["argmax", "single_change"])
@given(logits=LOGITS)
def test_decoding_a_horizon_equals_decoding_it_step_by_step(decoding: str, logits: np.ndarray) -> None:
    whole = decode_actions(logits, decoding, hindsight=False)
    np.testing.assert_array_equal(whole, step_by_step(logits, decoding))


@given(logits=LOGITS)
def test_hindsight_single_change_is_the_likeliest_of_all_splits(logits: np.ndarray) -> None:
    actions = decode_actions(logits, "single_change", hindsight=True)
    np.testing.assert_array_equal(actions, [best_split(horizon) for horizon in logits])


@pytest.mark.parametrize("hindsight", [True, False])
@given(logits=LOGITS)
def test_single_change_changes_the_position_once_at_most(hindsight: bool, logits: np.ndarray) -> None:
    actions = decode_actions(logits, "single_change", hindsight=hindsight)
    path = np.concatenate([np.full((len(actions), 1), FLAT), actions], axis=1)
    assert ((path[:, 1:] != path[:, :-1]).sum(axis=1) <= 1).all()


def test_equal_splits_go_to_flat_then_to_the_earlier_then_to_short() -> None:
    zero = np.zeros((1, 4, 3))
    assert decode_actions(zero, "single_change", hindsight=True).tolist() == [[FLAT] * 4]
    late = zero.copy()
    late[0, 2, [SHORT, LONG]] = 1.0
    assert decode_actions(late, "single_change", hindsight=True).tolist() == [[SHORT] * 4]


def test_tensors_and_any_leading_axes_are_taken() -> None:
    logits = torch.randn(2, 5, 7, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for decoding, hindsight in (("argmax", False), ("single_change", False), ("single_change", True)):
        nested = decode_actions(logits, decoding, hindsight=hindsight)
        flat = decode_actions(logits.detach().numpy().reshape(10, 7, 3), decoding, hindsight=hindsight)
        np.testing.assert_array_equal(nested.reshape(10, 7), flat)


def test_wrong_shapes_and_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits must have shape \(\.\.\., h, 3\), got \(4, 2\)"):
        decode_actions(np.zeros((4, 2)), "argmax", hindsight=False)
    with pytest.raises(ValueError, match="decoding must be 'argmax' or 'single_change', got decoding='beam'"):
        decode_actions(np.zeros((4, 3)), "beam", hindsight=False)
