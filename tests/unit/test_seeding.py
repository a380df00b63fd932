"""Random streams: repeatable, separate, and leaving global state alone."""

import torch

from archetype_dagster.seeding import derive_seed, numpy_generator, seeded_initialisation, torch_generator


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
