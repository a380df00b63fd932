"""Random streams: repeatable, separate, and leaving global state alone."""

import numpy as np
import torch
from scipy.stats import kstest

from archetype_dagster.seeding import (
    derive_seed,
    keyed_normals,
    numpy_generator,
    seeded_initialisation,
    torch_generator,
)


def test_the_same_name_gives_the_same_stream_and_another_name_another() -> None:
    first = numpy_generator(7, "workers", 0).random(4)
    assert (first == numpy_generator(7, "workers", 0).random(4)).all()
    assert (first != numpy_generator(7, "workers", 1).random(4)).all()
    assert (first != numpy_generator(8, "workers", 0).random(4)).all()
    assert derive_seed(1, "ab", "c") != derive_seed(1, "a", "bc")


def test_torch_streams_repeat() -> None:
    assert torch.equal(
        torch.rand(3, generator=torch_generator(0, "phase1", 2)),
        torch.rand(3, generator=torch_generator(0, "phase1", 2)),
    )


def test_initialisation_repeats_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(123)
    untouched = torch.rand(1)
    torch.manual_seed(123)
    with seeded_initialisation(0, "network"):
        first = torch.nn.Linear(3, 3).weight
    assert torch.equal(torch.rand(1), untouched)
    with seeded_initialisation(0, "network"):
        assert torch.equal(torch.nn.Linear(3, 3).weight, first)


def test_keyed_draws_know_their_key_their_column_and_their_stream_only() -> None:
    keys = np.array([3, -1, 1_700_000_000_000_000, 3], dtype=np.int64)
    draws = keyed_normals(keys, 5, 7, "book")
    np.testing.assert_array_equal(draws[0], draws[3])
    np.testing.assert_array_equal(keyed_normals(keys[2:], 2, 7, "book"), draws[2:, :2])
    for other in (keyed_normals(keys, 5, 8, "book"), keyed_normals(keys, 5, 7, "other")):
        assert (other != draws).all()


def test_keyed_draws_of_neighbouring_keys_are_normal_and_independent() -> None:
    draws = keyed_normals(np.arange(4_000, dtype=np.int64) * 600_000_000, 4, 0, "book")
    assert kstest(draws.ravel(), "norm").pvalue > 0.01
    table = np.concatenate([draws[:-1], draws[1:]], axis=1)
    off_diagonal = np.corrcoef(table.T) - np.eye(8)
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(len(table))
