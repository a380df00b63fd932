"""One bar read by itself costs what its row of the table costs, to the last bit, and is refused where the row is."""

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bar_costs import BarCosts
from archetype_dagster.market.book import mark_prices, trade_costs
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.single_bar import read_bar

M, RATE = 3.0, 0.0002


@pytest.fixture(scope="module")
def odd_bars(random_bars) -> pl.DataFrame:
    """Bars of seven levels with crossed, locked, thinned and one-sided books among them."""
    bars = random_bars(40, levels=7).with_row_index()
    at = pl.col("index")
    crossed = pl.when(at.is_in([3, 4])).then(pl.col("ask1_price") + 0.01 * (at - 3)).otherwise(pl.col("bid1_price"))
    thinned = [pl.when(at == 7).then(None).otherwise(pl.col(f"ask{n}_{f}")) for n in (3, 6) for f in ("price", "size")]
    empty = [pl.when(at == 9).then(None).otherwise(pl.col(f"bid{n}_price")) for n in range(1, 8)]
    names = [f"ask{n}_{f}" for n in (3, 6) for f in ("price", "size")]
    return bars.with_columns(
        crossed.alias("bid1_price"), *(one.alias(name) for one, name in zip(thinned, names, strict=True))
    ).with_columns(one.alias(f"bid{n}_price") for n, one in enumerate(empty, start=1))


@pytest.mark.parametrize("policy", ["extrapolate", "last_level"])
def test_every_change_costs_what_the_table_says(odd_bars, policy):
    curve = ImpactCurve.default().scaled(1e-4)
    costs = BarCosts(M, RATE, policy, curve)
    table = trade_costs(odd_bars, max_position=M, commission_rate=RATE, depth_policy=policy, impact_curve=curve)
    bars = [read_bar(row) for row in odd_bars.iter_rows(named=True)]
    found = [[[costs.loss(bar, before, after) for after in range(3)] for before in range(3)] for bar in bars]
    assert found == table.tolist()
    assert [float(bar.mid[0]) for bar in bars] == mark_prices(odd_bars).tolist()


def test_too_shallow_a_book_is_refused_under_reject(odd_bars):
    rows = list(odd_bars.iter_rows(named=True))
    deep, shallow = read_bar(rows[0]), read_bar({**rows[0], **{f"ask{n}_size": 0.5 for n in range(1, 8)}})
    curve = ImpactCurve.default()
    BarCosts(M, RATE, "reject", curve).check_depth(deep)
    BarCosts(M, RATE, "last_level", curve).check_depth(shallow)
    with pytest.raises(MarketDataError, match=r"visible depth 3\.5 cannot fill an order of 6"):
        BarCosts(M, RATE, "reject", curve).check_depth(shallow)
    assert BarCosts(M, RATE, "reject", curve).loss(shallow, 1, 1) == 0.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"bid7_size": -1.0}, "bid7_size"),
        ({"ask6_price": 0.0}, "ask6_price"),
        ({"close": None}, "close"),
        ({"ask2_price": float("inf")}, "ask2_price"),
        ({"open": "much"}, "open"),
    ],
)
def test_an_unusable_number_is_named_at_any_level(odd_bars, change, field):
    with pytest.raises(MarketDataError, match=f"field {field}"):
        read_bar({**odd_bars.row(0, named=True), **change})
    if field.startswith(("bid7", "ask6")):
        assert read_bar({**odd_bars.row(0, named=True), **change}, levels=5).books.bid.prices.shape == (1, 5)
