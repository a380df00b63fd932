"""Costs: hand-checked fills, the policies beyond the book, and what holds for every book."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import execution_cost_parts, mark_prices, trade_cost_parts, trade_costs
from archetype_dagster.market.book_walk import UNTRADABLE_BPS, walk_book
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.settings import Settings
from archetype_dagster.types import FLAT, LONG, SHORT

ASKS = [(101.0, 1.0), (102.0, 1.0), (103.0, 1.0), (104.0, 1.0), (105.0, 100.0)]
BIDS = [(99.0, 1.0), (98.0, 1.0), (97.0, 1.0), (96.0, 1.0), (95.0, 100.0)]
FLAT_CURVE = ImpactCurve(np.array([1e6]), np.array([0.0]))
STEEP_CURVE = ImpactCurve(np.array([100.0, 200.0]), np.array([0.0, 1000.0]))


def test_walk_uses_the_last_visible_level():
    prices, sizes = np.array(ASKS).T
    fill = walk_book(prices, sizes, 4.5)
    assert (fill.cash, fill.filled, fill.unfilled) == (462.5, 4.5, 0.0)


def test_walk_reports_what_the_book_could_not_fill():
    prices = np.full((2, 5), 10.0)
    sizes = np.array([[20.0] * 5, [0.0] * 5])
    fill = walk_book(prices, sizes, 101.0)
    assert_array_equal(fill.filled, [100.0, 0.0])
    assert_array_equal(fill.unfilled, [1.0, 101.0])
    assert_array_equal(fill.cash, [1000.0, 0.0])


def test_walk_takes_one_quantity_per_book():
    prices, sizes = np.tile([10.0, 11.0], (3, 1)), np.ones((3, 2))
    assert_array_equal(walk_book(prices, sizes, np.array([0.0, 1.0, 1.5])).cash, [0.0, 10.0, 15.5])


@pytest.mark.parametrize("quantity", [-1.0, np.nan, np.inf])
def test_walk_refuses_impossible_quantities(quantity):
    with pytest.raises(ValueError, match="quantity must be finite and not negative"):
        walk_book(np.ones((1, 5)), np.ones((1, 5)), quantity)


def test_walk_refuses_unequal_shapes():
    with pytest.raises(ValueError, match="one shape"):
        walk_book(np.ones((1, 5)), np.ones((1, 4)), 1.0)


def test_costs_of_a_book_worked_out_by_hand(one_book):
    costs = trade_costs(one_book(BIDS, ASKS), max_position=2.25, commission_rate=0.001)
    # Mark 100: 2.25 cost 1 + 2 + 0.25 x 3, 4.5 cost 1 + 2 + 3 + 4 + 0.5 x 5, plus 0.1 % of 225 and 450.
    single, double = 3.75 + 0.225, 12.5 + 0.45
    assert_allclose(costs[0], [[0, single, double], [single, 0, single], [double, single, 0]], rtol=1e-14)


def test_buys_pay_asks_and_sells_hit_bids(one_book):
    far_bids = [(price - 10, size) for price, size in BIDS]
    costs = trade_costs(one_book(far_bids, ASKS), max_position=1.0, commission_rate=0.0)[0]
    mark = (89 + 101) / 2
    assert costs[FLAT, LONG] == costs[SHORT, FLAT] == 101 - mark
    assert costs[FLAT, SHORT] == costs[LONG, FLAT] == mark - 89
    assert costs[SHORT, LONG] == 101 + 102 - 2 * mark
    assert costs[LONG, SHORT] == 2 * mark - 89 - 88


def test_commission_is_charged_on_the_traded_notional_at_the_mark(one_book):
    bars = pl.concat([one_book([(p - 1e-9, 1e6)] * 5, [(p + 1e-9, 1e6)] * 5) for p in (100.0, 100.05)])
    rise = 0.05
    for rate, held, round_trip in ((0.0002, 0.030, 0.010), (0.001, -0.050, -0.150)):
        costs = trade_costs(bars, max_position=1.0, commission_rate=rate)
        assert rise - costs[0, FLAT, LONG] == pytest.approx(held, abs=1e-4)
        assert rise - costs[0, FLAT, LONG] - costs[1, LONG, FLAT] == pytest.approx(round_trip, abs=1e-4)


def test_parts_add_up_and_commission_ignores_the_book(random_bars):
    bars = random_bars(50)
    parts = trade_cost_parts(bars, max_position=3.0, commission_rate=0.0002)
    assert_array_equal(parts.slippage + parts.commission, trade_costs(bars, max_position=3.0, commission_rate=0.0002))
    assert_array_equal(parts.commission[:, SHORT, LONG], 0.0002 * 6.0 * mark_prices(bars))


def test_last_level_prices_the_rest_at_the_worst_visible_price(one_book):
    thin = [(price, 1.0) for price, _ in ASKS]
    costs = trade_costs(one_book(BIDS, thin), max_position=7.0, commission_rate=0.0, depth_policy="last_level")
    assert costs[0, FLAT, LONG] == 1 + 2 + 3 + 4 + 5 + 2 * 5


def test_extrapolation_follows_the_curve_once_it_is_dearer(one_book):
    book = one_book([(99.0, 0.2)] * 5, [(101.0, 0.2)] * 5)
    costs = trade_costs(book, max_position=2.0, commission_rate=0.0, impact_curve=STEEP_CURVE)
    # One unit is visible, 100 bp away. From 100 to 110 of notional the curve is below that; from 110
    # to 200 it rises from 100 to 1000 bp.
    assert costs[0, FLAT, LONG] == pytest.approx(1 + 10 * 0.01 + 90 * 0.055, rel=1e-12)
    # Beyond 200 it stays at 1000 bp.
    assert costs[0, SHORT, LONG] == pytest.approx(1 + 10 * 0.01 + 90 * 0.055 + 200 * 0.1, rel=1e-12)


def test_a_curve_below_the_book_gives_the_last_level(random_bars):
    bars = random_bars(50)
    kwargs = {"max_position": 40.0, "commission_rate": 0.0}
    assert_array_equal(
        trade_costs(bars, impact_curve=FLAT_CURVE, **kwargs), trade_costs(bars, depth_policy="last_level", **kwargs)
    )


def test_reject_names_row_size_and_depth(one_book):
    deep, thin = one_book(BIDS, ASKS), one_book(BIDS, [(p, 1.0) for p, _ in ASKS])
    accepted = trade_costs(deep, max_position=50.0, commission_rate=0.0, depth_policy="reject")
    assert np.isfinite(accepted).all()
    with pytest.raises(MarketDataError, match=r"row 1, field asks: .*depth 5 cannot fill an order of 6") as caught:
        trade_costs(pl.concat([deep, thin]), max_position=3.0, commission_rate=0.0, depth_policy="reject")
    assert caught.value.row == 1


def test_partial_fills_are_refused_in_tables(one_book):
    with pytest.raises(ValueError, match=r"got depth_policy='partial'; partial fills leave positions off"):
        trade_costs(one_book(BIDS, ASKS), max_position=1.0, commission_rate=0.0, depth_policy="partial")


@pytest.mark.parametrize(
    ("argument", "value"), [("max_position", 0.0), ("max_position", np.nan), ("commission_rate", -1e-9)]
)
def test_arguments_out_of_range_are_named(one_book, argument, value):
    arguments = {"max_position": 1.0, "commission_rate": 0.0, argument: value}
    with pytest.raises(ValueError, match=argument):
        trade_costs(one_book(BIDS, ASKS), **arguments)


def test_sizes_of_zero_are_priced_from_their_price(one_book):
    empty = one_book([(p, 0.0) for p, _ in BIDS], [(p, 0.0) for p, _ in ASKS])
    costs = trade_costs(empty, max_position=2.0, commission_rate=0.0)
    assert_array_equal(costs[0], [[0, 10, 20], [10, 0, 10], [20, 10, 0]])


@pytest.mark.parametrize("policy", ["extrapolate", "last_level"])
def test_an_empty_side_is_untradable_and_finite(one_book, policy):
    bars = one_book(BIDS, [(None, None)] * 5, close=100.0)
    costs = trade_costs(bars, max_position=1.0, commission_rate=0.0, depth_policy=policy)[0]
    assert mark_prices(bars)[0] == 100.0
    assert costs[FLAT, LONG] == pytest.approx(100.0 * UNTRADABLE_BPS / 1e4)
    assert costs[SHORT, LONG] == pytest.approx(200.0 * UNTRADABLE_BPS / 1e4)
    assert costs[FLAT, SHORT] == 1.0


def test_reject_refuses_an_empty_side(one_book):
    with pytest.raises(MarketDataError, match="row 0, field asks"):
        trade_costs(one_book(BIDS, [(None, None)] * 5), max_position=1.0, commission_rate=0.0, depth_policy="reject")


def test_mark_of_a_one_sided_book_stays_outside_the_remaining_side(one_book):
    nothing = [(None, None)] * 5
    assert mark_prices(one_book(BIDS, nothing, close=98.0))[0] == 99.0
    assert mark_prices(one_book(nothing, ASKS, close=102.0))[0] == 101.0
    assert mark_prices(one_book(nothing, nothing, close=97.0))[0] == 97.0


def test_a_null_level_holds_nothing(one_book):
    shallow = [(101.0, 1.0), (102.0, 1.0), (None, None), (None, 5.0), (None, None)]
    costs = trade_costs(one_book(BIDS, shallow), max_position=3.0, commission_rate=0.0, depth_policy="last_level")
    assert costs[0, FLAT, LONG] == 1 + 2 + 2


@pytest.mark.parametrize(("bid", "ask"), [(90265.1, 90265.1), (101.0, 100.0)])
def test_locked_and_crossed_books_give_no_free_fill(one_book, bid, ask):
    bars = one_book([(bid - k, 10.0) for k in range(5)], [(ask + k, 10.0) for k in range(5)], close=bid)
    costs = trade_costs(bars, max_position=1.0, commission_rate=0.0)[0]
    assert costs[~np.eye(3, dtype=bool)].min() > 0


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("bid1_price", np.nan, "positive and finite"),
        ("ask3_price", 0.0, "positive and finite"),
        ("ask2_price", np.inf, "positive and finite"),
        ("bid5_size", -1.0, "finite and not negative"),
        ("bid5_size", np.nan, "finite and not negative"),
    ],
)
def test_unusable_values_are_named(one_book, column, value, rule):
    bars = pl.concat([one_book(BIDS, ASKS), one_book(BIDS, ASKS).with_columns(pl.lit(value).alias(column))])
    with pytest.raises(MarketDataError, match=f"row 1, field {column}: must be {rule}"):
        trade_costs(bars, max_position=1.0, commission_rate=0.0)


def test_run_settings_stretch_the_curve_to_the_pairs_liquidity(random_bars):
    bars, settings_tree = random_bars(20), Settings()
    pair = settings_tree.pair("ETH")
    parts = execution_cost_parts(bars, settings_tree.execution, pair)
    expected = trade_cost_parts(
        bars,
        max_position=pair.max_position,
        commission_rate=0.0002,
        impact_curve=ImpactCurve.default().scaled(pair.liquidity_scale),
    )
    assert_array_equal(parts.slippage, expected.slippage)
    assert_array_equal(parts.commission, expected.commission)


level_lists = st.lists(
    st.tuples(st.one_of(st.none(), st.floats(0.001, 3.0)), st.one_of(st.none(), st.just(0.0), st.floats(1e-6, 50.0))),
    min_size=5,
    max_size=8,
)
books = st.tuples(st.floats(-1.0, 5.0), level_lists, level_lists)


def _frame(drawn, rows: int = 1) -> pl.DataFrame:
    """Books whose touch may be locked, crossed or missing; deeper levels lie further out."""
    columns: dict[str, pl.Series] = {"close": pl.Series([100.0] * rows)}
    depth = min(min(len(bids), len(asks)) for _, bids, asks in drawn)
    for side, sign, pick in (("bid", -1, 1), ("ask", 1, 2)):
        for level in range(depth):
            steps = [book[pick][: level + 1] for book in drawn]
            columns[f"{side}{level + 1}_price"] = pl.Series(
                [
                    None if ladder[-1][0] is None else 100 + sign * (book[0] / 2 + sum(s or 0.0 for s, _ in ladder))
                    for ladder, book in zip(steps, drawn, strict=True)
                ],
                dtype=pl.Float64,
            )
            columns[f"{side}{level + 1}_size"] = pl.Series([ladder[-1][1] for ladder in steps], dtype=pl.Float64)
    return pl.DataFrame(columns)


@settings(max_examples=60, deadline=None)
@given(drawn=st.lists(books, min_size=1, max_size=6), m=st.floats(0.01, 100.0))
def test_costs_of_any_book_are_finite_ordered_and_symmetric_in_structure(drawn, m):
    bars = _frame(drawn, len(drawn))
    costs = trade_costs(bars, max_position=m, commission_rate=0.0002)
    worst = trade_costs(bars, max_position=m, commission_rate=0.0002, depth_policy="last_level")
    assert np.isfinite(costs).all()
    assert_array_equal(costs[:, [0, 1, 2], [0, 1, 2]], 0.0)
    assert costs[:, ~np.eye(3, dtype=bool)].min() > 0
    assert (costs >= worst).all()
    assert_array_equal(costs[:, SHORT, FLAT], costs[:, FLAT, LONG])
    assert_array_equal(costs[:, LONG, FLAT], costs[:, FLAT, SHORT])
    # Marginal prices only get worse, so two steps never cost more than one of the double size.
    assert (costs[:, SHORT, LONG] >= 2 * costs[:, FLAT, LONG] * (1 - 1e-12)).all()
    assert (costs[:, LONG, SHORT] >= 2 * costs[:, FLAT, SHORT] * (1 - 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(drawn=st.lists(books, min_size=2, max_size=8), cut=st.integers(1, 7), m=st.floats(0.01, 100.0))
def test_costs_and_marks_of_a_row_depend_on_no_other_row(drawn, cut, m):
    bars = _frame(drawn, len(drawn))
    kwargs = {"max_position": m, "commission_rate": 0.0002}
    assert_array_equal(trade_costs(bars, **kwargs)[:cut], trade_costs(bars[:cut], **kwargs))
    assert_array_equal(mark_prices(bars)[:cut], mark_prices(bars[:cut]))


def test_extrapolation_from_five_levels_beats_the_last_level_on_real_deep_books(shared_data):
    # The curve is measured on the spot book, which is the one traded; the perpetual's is deeper.
    for venue, share in (("spot", 0.6), ("perp", 1.0)):
        deep = pl.read_parquet(shared_data / "book" / f"binance_{venue}_btcusdt_1000levels_2026-02-16.parquet")[::32]
        kwargs = {"max_position": 8.0, "commission_rate": 0.0}
        true_cost = trade_costs(_visible(deep, 400), depth_policy="reject", **kwargs)
        errors = {
            policy: np.abs(trade_costs(_visible(deep, 5), depth_policy=policy, **kwargs) - true_cost)[:, 1, :].mean()
            for policy in ("extrapolate", "last_level")
        }
        assert errors["extrapolate"] < share * errors["last_level"]


def _visible(deep: pl.DataFrame, levels: int) -> pl.DataFrame:
    columns = {}
    for side in ("bid", "ask"):
        for source, field in (("px", "price"), ("qty", "size")):
            matrix = np.array(deep[f"{side}s_{source}"].to_list())
            columns |= {f"{side}{level + 1}_{field}": matrix[:, level] for level in range(levels)}
    return pl.DataFrame(columns)
