"""Random streams derived from one seed and a name, so that no two parts share a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on `seed` and on every name, stable across processes."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the stream called `names`."""
    return np.random.default_rng(derive_seed(seed, *names))


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU torch generator for the stream called `names`."""
    import torch  # here, so that planning and market data work without loading it

    return torch.Generator().manual_seed(derive_seed(seed, *names))


@contextmanager
def seeded_initialisation(seed: int, *names: str | int) -> Iterator[None]:
    """Initialise modules inside from the stream `names`; torch's global state is left as it was.

    Layer initialisers offer no generator argument, so the global one is forked and seeded.
    """
    import torch  # as above

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, *names))
        yield
