"""The formulas on the floats of one bar and on arrays of many: the same bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from archetype_dagster.market.feature_formulas import (
    ARRAYS,
    BOOK_LEVELS,
    FLOATS,
    Candles,
    array_levels,
    bar_quantities,
    float_levels,
)
from archetype_dagster.market.order_books import book_side


@given(seed=st.integers(0, 2**32), bars=st.integers(1, 9), absent=st.floats(0, 1))
def test_one_bar_alone_says_what_it_says_among_others(seed, bars, absent):
    """With empty sides, absent levels, sizes of zero and candles without reach among them."""
    draws = np.random.default_rng(seed)
    mid = draws.uniform(1, 1e5, bars)
    distances = np.sort(draws.uniform(0, 1e-3, (2, BOOK_LEVELS, bars)), axis=1)
    prices = mid * (1 + np.array([-1, 1])[:, None, None] * distances)
    prices[draws.random(prices.shape) < absent] = np.nan
    sizes = np.where(draws.random(prices.shape) < absent, 0.0, draws.lognormal(size=prices.shape))
    books = [book_side(*side) for side in zip(prices, sizes, strict=True)]
    moves = np.where(draws.random(bars) < absent, 0.0, draws.uniform(0, 1e-3, (4, bars)))
    candles = Candles(mid, mid * (1 + moves[0]), mid * (1 - moves[1]), mid * (1 + moves[0] - moves[2]), moves[3])
    many = bar_quantities(*(array_levels(side, mid) for side in books), candles, ARRAYS)
    for bar in range(bars):
        alone = [book_side(prices[side, :, bar : bar + 1], sizes[side, :, bar : bar + 1]) for side in (0, 1)]
        floats = Candles(*(column[bar].item() for column in candles))
        one = bar_quantities(*(float_levels(side, mid[bar].item()) for side in alone), floats, FLOATS)
        assert list(one) == list(many)
        assert_array_equal(list(one.values()), [values[bar] for values in many.values()])
