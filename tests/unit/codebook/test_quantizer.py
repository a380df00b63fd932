import math

import numpy as np
import pytest
import torch

from archetype_dagster.codebook import VectorQuantizer, code_usage
from archetype_dagster.codebook.training import forget_moments


def quantizer_with(codes: list[list[float]], *, commitment: float = 0.25) -> VectorQuantizer:
    quantizer = VectorQuantizer(len(codes), len(codes[0]), commitment=commitment).double()
    with torch.no_grad():
        quantizer.codes.copy_(torch.tensor(codes, dtype=torch.float64))
    return quantizer


def test_nearest_code_and_loss_equal_values_worked_out_by_hand() -> None:
    quantizer = quantizer_with([[0.0, 0.0], [4.0, 0.0]])
    z = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    z_q, indices, loss = quantizer(z)
    assert indices.tolist() == [0, 1]
    assert z_q.tolist() == [[0.0, 0.0], [4.0, 0.0]]
    # Squared distances 5 and 2, summed over dimensions and averaged over the batch, once plus beta_0 times.
    assert loss.item() == pytest.approx((5.0 + 2.0) / 2 * 1.25, rel=1e-15)


def test_equal_distances_choose_the_lowest_index() -> None:
    quantizer = quantizer_with([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    assert quantizer.nearest(torch.tensor([[0.0, 5.0], [2.0, 0.3]], dtype=torch.float64)).tolist() == [0, 0]


def test_quantised_vectors_are_the_codes_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    quantizer = VectorQuantizer(10, 16)
    z_q, indices, _ = quantizer(torch.randn(500, 16, generator=generator) * 1e3)
    assert torch.equal(z_q, quantizer.codes[indices])


def test_gradient_passes_straight_through_the_quantiser() -> None:
    quantizer = VectorQuantizer(5, 3)
    z = torch.randn(7, 3, requires_grad=True)
    weights = torch.randn(7, 3)
    z_q, _, _ = quantizer(z)
    (z_q * weights).sum().backward()
    assert torch.equal(z.grad, weights)
    assert quantizer.codes.grad is None


@pytest.mark.parametrize("commitment", [0.0, 0.25, 2.0])
def test_loss_gradients_equal_finite_differences_of_their_own_term(commitment: float) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    quantizer = quantizer_with(codes.tolist(), commitment=commitment)
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64).requires_grad_()
    _, indices, loss = quantizer(z)
    loss.backward()

    def distance(encodings: torch.Tensor, vectors: torch.Tensor) -> float:
        return float((encodings - vectors[indices]).square().sum(dim=1).mean())

    def slope(move_encodings: bool, row: int, column: int, step: float = 1e-5) -> float:
        values = []
        for sign in (1, -1):
            encodings, vectors = z.detach().clone(), codes.clone()
            (encodings if move_encodings else vectors)[row, column] += sign * step
            values.append(distance(encodings, vectors))
        return (values[0] - values[1]) / (2 * step)

    to_codes = [[slope(False, row, column) for column in range(3)] for row in range(4)]
    to_encodings = [[commitment * slope(True, row, column) for column in range(3)] for row in range(6)]
    np.testing.assert_allclose(quantizer.codes.grad, to_codes, atol=1e-9)
    np.testing.assert_allclose(z.grad, to_encodings, atol=1e-9)


def test_four_equal_encodings_report_a_collapse_to_one_code() -> None:
    quantizer = VectorQuantizer(10, 4)
    _, indices, loss = quantizer(torch.ones(4, 4))
    usage = code_usage(indices, 10)
    assert torch.isfinite(loss)
    assert torch.isfinite(quantizer.codes).all()
    assert usage.used == 1
    assert usage.perplexity == 1.0
    assert usage.counts.sum() == 4
    assert usage.alarm


def test_usage_counts_perplexity_and_alarm_follow_their_definitions() -> None:
    even = code_usage(np.array([0, 1, 2, 3]), 4)
    assert even.perplexity == pytest.approx(4.0)
    assert not even.alarm
    half = code_usage(np.array([0, 0, 0, 2]), 4)
    assert half.counts.tolist() == [3, 0, 1, 0]
    assert half.perplexity == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))
    assert not half.alarm
    assert code_usage(np.array([0, 2]), 5).alarm
    nothing = code_usage(np.array([], dtype=np.int64), 3)
    assert (nothing.used, nothing.perplexity, nothing.alarm) == (0, 0.0, True)


@pytest.mark.parametrize("forget", [True, False])
def test_reseeded_code_survives_the_next_step_only_where_its_moments_are_forgotten(forget: bool) -> None:
    quantizer = VectorQuantizer(10, 4)
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.01)

    def step(z: torch.Tensor) -> None:
        _, _, loss = quantizer(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step(quantizer.codes.detach() + 0.01)
    near_others = quantizer.codes.detach()[[0, 1, 2]].clone()
    for _ in range(100):
        step(near_others)
        assert 7 not in quantizer.nearest(near_others)
    sampled = torch.tensor([5.0, -5.0, 5.0, -5.0])
    rows = torch.tensor([7])
    quantizer.reseed(rows, sampled[None])
    # Enough of a past for a momentum to show.
    optimizer.state[quantizer.codes]["exp_avg"][7] += 1.0
    if forget:
        forget_moments(optimizer, quantizer.codes, rows)
    step(near_others)
    assert torch.equal(quantizer.codes.detach()[7], sampled) is forget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_codes": 0, "dim": 3}, "num_codes must be positive, got num_codes=0"),
        ({"num_codes": 3, "dim": -1}, "dim must be positive, got dim=-1"),
        ({"num_codes": 3, "dim": 3, "commitment": -0.1}, "commitment must not be negative, got commitment=-0.1"),
        ({"num_codes": 3, "dim": 3, "commitment": math.nan}, "commitment must not be negative, got commitment=nan"),
    ],
)
def test_impossible_sizes_and_weights_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VectorQuantizer(**arguments)


def test_encodings_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"z must have shape \(B, 3\), got \(2, 4\)"):
        VectorQuantizer(5, 3)(torch.zeros(2, 4))
