"""Random streams derived from one seed and a name, so that no two parts share a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# Increment, shifts and multipliers of SplitMix64 (Steele, Lea and Flood 2014).
_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS: Final = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT: Final = np.uint64(31)


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on `seed` and on every name, stable across processes."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the stream called `names`."""
    return np.random.default_rng(derive_seed(seed, *names))


def keyed_normals(keys: NDArray[np.int64], columns: int, seed: int, *names: str | int) -> NDArray[np.float64]:
    """Standard normal draws, each a function of its key, its column and the stream called `names` alone.

    So a row's draws stay the same whatever rows stand beside it, and a column's however many follow. Every key
    starts a SplitMix64 sequence whose numbers, as uniforms in (0, 1), go through the inverse normal distribution.

    Args:
        keys: int64 (T,), what a row is known by, such as its time.
        columns: draws for each key.
        seed: seed of the run.
        names: name of the stream.

    Returns:
        float64 (T, columns).
    """
    from scipy.special import ndtri  # here, because it is slow to load and few need it

    steps = np.arange(1, columns + 1, dtype=np.uint64) * _INCREMENT
    starts = _mixed(_mixed(keys.astype(np.uint64)) + np.uint64(derive_seed(seed, *names)))
    numbers = _mixed(starts[:, np.newaxis] + steps)
    # The 53 bits that a float64 holds, in the middle of their interval.
    normals: NDArray[np.float64] = ndtri(((numbers >> np.uint64(11)) + 0.5) * 2.0**-53)
    return normals


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU torch generator for the stream called `names`."""
    import torch  # here, so that planning and market data work without loading it

    return torch.Generator().manual_seed(derive_seed(seed, *names))


@contextmanager
def seeded_initialisation(seed: int, *names: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Initialise or drop units of modules inside from the stream `names`; torch's global state is left as it was.

    Layer initialisers and dropout offer no generator argument, so the global one is forked and seeded, and so is
    that of a CUDA `device`.
    """
    import torch  # as above

    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, *names))
        yield


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in _ROUNDS:
        values = (values ^ (values >> shift)) * multiplier
    return values ^ (values >> _LAST_SHIFT)
