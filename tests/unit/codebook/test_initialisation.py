import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.codebook import initial_codes
from archetype_dagster.codebook.initialisation import dominant_direction, share_codes
from archetype_dagster.types import FLAT, LONG, SHORT

FLAT_PLANS = np.full((300, 6), FLAT, dtype=np.int8)


def blobs(centres: np.ndarray, each: int = 100) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (np.repeat(centres, each, axis=0) + 0.01 * rng.normal(size=(each * len(centres), 2))).astype(np.float32)


@pytest.mark.parametrize("method", ["kmeans", "direction_aware"])
def test_codes_start_at_the_centres_of_separate_groups(method: str) -> None:
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    codes = initial_codes(blobs(centres), FLAT_PLANS, 3, method=method, seed=0)
    assert codes.dtype == np.float32
    nearest = np.abs(codes[None] - centres[:, None]).sum(axis=2)
    assert sorted(nearest.argmin(axis=1)) == [0, 1, 2]
    assert nearest.min(axis=1).max() < 0.02


@pytest.mark.parametrize("method", ["kmeans", "direction_aware"])
@given(distinct=st.integers(1, 5), num_codes=st.integers(2, 8))
def test_fewer_distinct_encodings_than_codes_start_every_code_on_one_of_them(
    method: str, distinct: int, num_codes: int
) -> None:
    encodings = np.repeat(np.arange(distinct, dtype=np.float32)[:, None], 2, axis=1).repeat(3, axis=0)
    plans = np.random.default_rng(distinct).integers(0, 3, (len(encodings), 6)).astype(np.int8)
    codes = initial_codes(encodings, plans, num_codes, method=method, seed=0)
    assert codes.shape == (num_codes, 2)
    assert np.isfinite(codes).all()
    if distinct <= num_codes and method == "kmeans":
        assert set(codes[:, 0].tolist()) == set(range(distinct))


def test_the_rarest_direction_still_gets_a_code_of_its_own() -> None:
    encodings = blobs(np.array([[0.0, 0.0], [9.0, 9.0]]), each=150)
    plans = np.repeat([[LONG] * 6, [SHORT] * 6], [290, 10], axis=0).astype(np.int8)
    encodings[290:] = [-50.0, 1.0]
    codes = initial_codes(encodings, plans, 4, method="direction_aware", seed=0)
    assert (np.abs(codes - [-50.0, 1.0]).max(axis=1) < 1e-4).sum() == 1


def test_direction_is_the_sign_of_the_summed_positions() -> None:
    plans = np.array([[1, 1, 2, 2], [0, 0, 2, 1], [1, 1, 1, 1], [0, 1, 1, 2]], dtype=np.int8)
    assert dominant_direction(plans).tolist() == [1, -1, 0, 0]


@pytest.mark.parametrize(
    ("sizes", "num_codes", "shares"),
    [
        ([50, 0, 50], 10, [5, 0, 5]),
        ([98, 1, 1], 10, [8, 1, 1]),
        ([10, 20, 30], 2, [0, 1, 1]),
        ([1, 1, 1], 5, [2, 2, 1]),
    ],
)
def test_codes_are_shared_in_proportion_with_one_each(sizes: list[int], num_codes: int, shares: list[int]) -> None:
    assert share_codes(np.array(sizes), num_codes).tolist() == shares


@given(sizes=st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any), num_codes=st.integers(2, 40))
def test_every_code_is_given_away_and_only_to_groups_that_have_members(sizes: list[int], num_codes: int) -> None:
    shares = share_codes(np.array(sizes), num_codes)
    assert shares.sum() == num_codes
    assert all((share > 0) <= (size > 0) for share, size in zip(shares, sizes, strict=True))
    if num_codes >= 3:
        assert all((share > 0) == (size > 0) for share, size in zip(shares, sizes, strict=True))


def test_the_same_seed_starts_the_same_codes() -> None:
    encodings = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    first, second, other = (initial_codes(encodings, FLAT_PLANS, 7, method="kmeans", seed=seed) for seed in (3, 3, 4))
    assert first.tobytes() == second.tobytes()
    assert first.tobytes() != other.tobytes()


def test_no_or_broken_encodings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one encoding"):
        initial_codes(np.zeros((0, 2), dtype=np.float32), FLAT_PLANS[:0], 3, method="kmeans", seed=0)
    with pytest.raises(ValueError, match="encodings must be finite"):
        initial_codes(np.full((2, 2), np.nan, dtype=np.float32), FLAT_PLANS[:2], 3, method="kmeans", seed=0)
