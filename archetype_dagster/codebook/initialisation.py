"""Where codes start: centres of the encodings that continuous pretraining produced."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from archetype_dagster.seeding import derive_seed
from archetype_dagster.types import ActionArray, IndexArray, StateArray

RESTARTS: Final = 10


def initial_codes(
    encodings: StateArray,
    actions: ActionArray,
    num_codes: int,
    *,
    method: Literal["kmeans", "direction_aware"],
    seed: int,
) -> StateArray:
    """Code vectors float32 (K, D), always finite, for encodings float32 (n, D).

    `kmeans` takes the centres of k-means. `direction_aware` clusters long, short and flat demonstrations
    apart and shares the codes out among the groups in proportion, at least one each; with fewer codes
    than groups the largest groups get one. Fewer distinct encodings than codes give each its own centre
    and repeat centres for the rest, which `VectorQuantizer` leaves unused until they are re-seeded.

    Args:
        encodings: z_e float32 (n, D), n >= 1.
        actions: demonstrated actions int8 (n, h).
        num_codes: K.
        method: how the encodings are grouped first.
        seed: seed of the run.

    Raises:
        ValueError: no encodings, or one that is not finite.
    """
    if not len(encodings):
        raise ValueError("codes need at least one encoding to start from, got 0")
    if not np.isfinite(encodings).all():
        raise ValueError("encodings must be finite to start codes from them")
    if method == "kmeans":
        return _centres(encodings, num_codes, derive_seed(seed, "codebook", "kmeans"))
    direction = dominant_direction(actions)
    groups = [encodings[direction == sign] for sign in (-1, 0, 1)]
    shares = share_codes(np.array([len(group) for group in groups], dtype=np.int64), num_codes)
    parts = [
        _centres(group, int(share), derive_seed(seed, "codebook", "kmeans", index))
        for index, (group, share) in enumerate(zip(groups, shares, strict=True))
        if share
    ]
    return np.concatenate(parts)


def dominant_direction(actions: ActionArray) -> NDArray[np.int8]:
    """Sign int8 (n,) of the summed positions of each demonstration: -1 short, 0 flat, 1 long."""
    directions: NDArray[np.int8] = np.sign(actions.sum(axis=1, dtype=np.int64) - actions.shape[1]).astype(np.int8)
    return directions


def share_codes(sizes: IndexArray, num_codes: int) -> IndexArray:
    """Codes int64 per group in proportion to `sizes`: one for each group that is not empty, the rest by
    largest remainder; ties go to the earlier group. Fewer codes than groups: one for each of the largest.
    """
    order = np.argsort(-sizes, kind="stable")
    shares = np.zeros(len(sizes), dtype=np.int64)
    shares[order[: min(num_codes, np.count_nonzero(sizes))]] = 1
    ideal = (num_codes - shares.sum()) * sizes / sizes.sum()
    shares += np.floor(ideal).astype(np.int64)
    by_remainder = np.argsort(np.floor(ideal) - ideal, kind="stable")
    shares[by_remainder[: num_codes - shares.sum()]] += 1
    return shares


def _centres(encodings: StateArray, count: int, seed: int) -> StateArray:
    distinct = np.unique(encodings, axis=0)
    if len(distinct) <= count:
        return distinct[np.arange(count) % len(distinct)].astype(np.float32)
    # Here, because it takes as long to load as torch and most processes never start codes.
    from sklearn.cluster import KMeans

    # More threads would add the partial sums of a centre in an order that changes from run to run.
    with threadpool_limits(limits=1):
        fitted = KMeans(count, n_init=RESTARTS, random_state=seed % 2**32).fit(encodings.astype(np.float64))
    centres: StateArray = fitted.cluster_centers_.astype(np.float32)
    return centres
