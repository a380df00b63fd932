"""Judging depth policies: errors worked out by hand, and the default's place on real deep books."""

import numpy as np
import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.depth_judging import (
    CONTINUED,
    EXTRAPOLATED,
    FIRST_HALF,
    IN_SAMPLE,
    LAST_LEVEL,
    LINEAR_FIT,
    POWER_FIT,
    SHIPPED,
    judge_depth_policies,
    judge_markets,
    wide_books,
)
from archetype_dagster.market.impact import ImpactCurve

MID = 10_000.0
FLAT = ImpactCurve(np.array([1.0]), np.array([0.0]))


def _deep(snapshots: int = 4, *, levels: int = 10, ask_size: float = 1.0) -> pl.DataFrame:
    """Level k lies k bp from the mid and holds one unit, or `ask_size` on the ask side."""
    steps = 1e-4 * MID * np.arange(1, levels + 1)
    return pl.DataFrame(
        {
            "bids_px": [(MID - steps).tolist()] * snapshots,
            "bids_qty": [[1.0] * levels] * snapshots,
            "asks_px": [(MID + steps).tolist()] * snapshots,
            "asks_qty": [[ask_size] * levels] * snapshots,
        }
    )


def _judged(books: pl.DataFrame, curve: ImpactCurve = FLAT, *, levels: int = 5, quantity: float = 8.0) -> pl.DataFrame:
    return judge_depth_policies(books, {"c": curve}, levels=(levels,), quantities=(quantity,))


def _of(judged: pl.DataFrame, policy: str, side: str = "buy") -> dict[str, float]:
    return judged.row(by_predicate=(pl.col("policy") == policy) & (pl.col("side") == side), named=True)


def test_lists_become_the_columns_of_a_book_and_shorter_sides_end_in_nulls():
    books = _deep(1).with_columns(asks_px=pl.col("asks_px").list.head(7), asks_qty=pl.col("asks_qty").list.head(7))
    wide = wide_books(books)
    assert wide.columns[:4] == ["bid1_price", "bid1_size", "ask1_price", "ask1_size"]
    assert wide.width == 40
    assert wide["bid10_price"].to_list() == [MID - 10]
    assert wide["ask7_price"].to_list() == [MID + 7]
    assert wide["ask8_price"].to_list() == [None]
    assert wide_books(wide) is wide


def test_the_true_cost_walks_every_level_and_the_last_level_stops_at_the_worst_one_seen():
    row = _of(_judged(_deep()), LAST_LEVEL)
    assert row["true_bps"] == pytest.approx((1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 8)
    assert row["bias_bps"] == pytest.approx(-(1 + 2 + 3) / 8)
    assert row["error_bps"] == row["worst_bps"] == pytest.approx((1 + 2 + 3) / 8)
    assert (row["orders"], row["visible_share"]) == (4, 0.0)


def test_what_the_visible_levels_fill_is_priced_without_error_by_every_policy():
    judged = _judged(_deep(), quantity=5.0)
    assert judged["bias_bps"].abs().max() < 1e-9
    assert judged["visible_share"].to_list() == [1.0] * judged.height


def test_buys_walk_the_asks_and_sells_the_bids():
    judged = _judged(_deep(ask_size=2.0))
    assert _of(judged, LAST_LEVEL, "buy")["true_bps"] == pytest.approx(2 * (1 + 2 + 3 + 4) / 8)
    assert _of(judged, LAST_LEVEL, "buy")["visible_share"] == 1.0
    assert _of(judged, LAST_LEVEL, "sell")["true_bps"] == pytest.approx(4.5)


def test_a_curve_is_measured_from_the_mid_or_continued_from_the_worst_visible_price():
    # The curve rises by 1 bp a unit from 2 bp: 7 to 10 bp between 5 and 8 units, where the book goes from 5 to 8.
    curve = ImpactCurve(MID * np.array([1e-9, 10.0]), np.array([2.0, 12.0]))
    judged = _judged(_deep(), curve)
    seen, true = 1 + 2 + 3 + 4 + 5, 8 * 4.5
    assert _of(judged, f"{EXTRAPOLATED}c")["bias_bps"] == pytest.approx((seen + 3 * 8.5 - true) / 8)
    assert _of(judged, f"{CONTINUED}c")["bias_bps"] == pytest.approx((seen + 3 * 6.5 - true) / 8)


def test_a_curve_that_does_not_rise_leaves_the_worst_visible_price():
    judged = _judged(_deep(), FLAT)
    assert _of(judged, f"{CONTINUED}c")["bias_bps"] == pytest.approx(_of(judged, LAST_LEVEL)["bias_bps"])
    assert _of(judged, f"{EXTRAPOLATED}c")["bias_bps"] == pytest.approx(_of(judged, LAST_LEVEL)["bias_bps"])


def test_a_fit_of_the_snapshot_finds_a_straight_book_and_loses_no_more_than_the_price():
    # Distance equals cumulative size, so the fits' integral from 5 to 8 is 19.5 where the levels cost 21.
    judged = _judged(_deep())
    for fit in (LINEAR_FIT, POWER_FIT):
        assert _of(judged, fit)["bias_bps"] == pytest.approx((19.5 - 21) / 8)
    dust = _deep().with_columns(asks_qty=pl.Series([[5.0, *[1e-9] * 4, *[1.0] * 5]] * 4))
    assert _of(_judged(dust), POWER_FIT)["bias_bps"] == pytest.approx(
        (5 * 1 + 3 * 1e4 - (5 * 1 + 6 + 7 + 8)) / 8, rel=1e-6
    )


def test_orders_deeper_than_a_recording_are_left_out_and_refused_where_none_is_known():
    shallow = _deep(2, ask_size=0.5)
    books = pl.concat([_deep(3), shallow])
    judged = _judged(books)
    assert _of(judged, LAST_LEVEL, "buy")["orders"] == 3
    assert _of(judged, LAST_LEVEL, "sell")["orders"] == 5
    with pytest.raises(MarketDataError, match="no snapshot's 10 levels fill an order of 8"):
        _judged(shallow)


@pytest.mark.parametrize("levels", [4, 11])
def test_no_more_levels_are_shown_than_were_recorded_and_no_fewer_than_five(levels):
    with pytest.raises(MarketDataError, match=f"visible levels must lie between 5 and 10, got {levels}"):
        _judged(_deep(), levels=levels)


def test_snapshots_with_an_empty_side_are_left_out():
    wide = wide_books(_deep(3))
    holed = wide.with_columns(
        pl.when(pl.int_range(pl.len()) > 0).then(f"ask{level}_{field}").alias(f"ask{level}_{field}")
        for level in range(1, 11)
        for field in ("price", "size")
    )
    assert _judged(holed)["orders"].to_list() == [2] * 10


def test_deep_markets_are_judged_on_their_second_half_with_curves_from_elsewhere():
    thin, deep = _deep(4, ask_size=10.0), _deep(4, ask_size=100.0)
    halves = pl.concat([thin[:2], deep[:2]])
    judged = judge_markets(
        {"a": halves, "b": deep, "wide": wide_books(deep)}, levels=(5,), quantities=(8.0,), liquidity_scale=2.0
    )
    found = judged.filter(pl.col("side") == "buy").select("market", "policy", "orders", "true_bps")
    names = {market: set(rows["policy"]) for (market,), rows in found.group_by("market")}
    ways = {LAST_LEVEL, LINEAR_FIT, POWER_FIT}
    for market, other in (("a", "b"), ("b", "a")):
        curves = {kind + name for kind in (EXTRAPOLATED, CONTINUED) for name in (IN_SAMPLE, FIRST_HALF, other)}
        assert names[market] == ways | curves
    assert names["wide"] == ways | {EXTRAPOLATED + SHIPPED, CONTINUED + SHIPPED}
    assert dict(found.group_by("market").agg(pl.col("orders").first()).rows()) == {"a": 2, "b": 2, "wide": 4}
    # Only the second half of `a` is judged, where 8 units do not leave the first level.
    assert set(found.filter(pl.col("market") == "a")["true_bps"].round(9)) == {1.0}


def test_out_of_sample_the_default_policy_is_the_best_of_those_offered(shared_data):
    files = {name: f"binance_{name}_btcusdt_1000levels_2026-02-16.parquet" for name in ("spot", "perp")}
    books = {name: pl.read_parquet(shared_data / "book" / file) for name, file in files.items()}
    judged = judge_markets(books, levels=(5, 25), quantities=(8.0, 50.0))
    errors = judged.group_by("market", "levels", "policy").agg(pl.col("error_bps").mean())
    for market, other in (("spot", "perp"), ("perp", "spot")):
        for levels in (5, 25):
            here = errors.filter(market=market, levels=levels)
            error = dict(zip(here["policy"], here["error_bps"], strict=True))
            assert error[EXTRAPOLATED + FIRST_HALF] < error[EXTRAPOLATED + other] < error[LAST_LEVEL]
            assert 3 * error[LAST_LEVEL] < error[LINEAR_FIT] < error[POWER_FIT]
            assert error[EXTRAPOLATED + FIRST_HALF] < 0.7
