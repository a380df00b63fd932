"""An order in the engine costs what the cost table says."""

import numpy as np
import pytest

from archetype_dagster.backtest import BacktestEngine, Order, spot_instrument
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.book import mark_prices, trade_cost_parts
from archetype_dagster.market.sources import bars_for
from archetype_dagster.settings import EngineSettings, ExecutionSettings, load_settings

SPOT = spot_instrument("BTC", "USDT")
RATE = 0.0002


@pytest.fixture(scope="module")
def uneven_bars():
    """Forty bars of the embedded market among which sides are empty, levels absent and touches locked or crossed."""
    settings = load_settings(
        overrides={
            "market.synthetic.start": "2024-01-01T00:00:00Z",
            "market.synthetic.end": "2024-01-01T06:40:00Z",
            "market.book_levels": 6,
        }
    )
    bars = assign_segments(bars_for(settings, "BTC"), bar_minutes=10)
    columns = {name: bars[name].to_list() for name in bars.columns}
    for level in range(1, 7):
        columns[f"ask{level}_price"][3] = columns[f"ask{level}_size"][3] = None
    columns["bid4_price"][5] = columns["bid4_size"][5] = None
    columns["bid5_price"][5] = columns["bid6_price"][5] = None
    columns["bid1_price"][7] = columns["ask1_price"][7]
    columns["bid1_price"][8] = columns["ask2_price"][8]
    columns["ask2_size"][9] = 0.0
    return type(bars)(columns, schema=bars.schema)


@pytest.mark.parametrize("policy", ["extrapolate", "last_level"])
@pytest.mark.parametrize("max_position", [0.5, 8.0, 500.0])
def test_m_and_2m_cost_what_the_table_says_in_every_row_and_direction(uneven_bars, policy, max_position):
    parts = trade_cost_parts(uneven_bars, max_position=max_position, commission_rate=RATE, depth_policy=policy)
    mark = mark_prices(uneven_bars)
    settings = EngineSettings(depth_policy=policy)
    engine = BacktestEngine(1e12, settings=settings, execution=ExecutionSettings(commission_rate=RATE))
    engine.add(SPOT, uneven_bars)
    for actions in ([2, 0, 2, 1, 0, 1], [0, 2, 1, 2, 1, 0]):
        held = np.resize(actions, uneven_bars.height)
        before = np.concatenate([[1], held[:-1]])
        result = engine.run_targets(max_position * (held - 1.0))
        rows = np.arange(len(held))
        for name, table in (("slippage", parts.slippage), ("fee", parts.commission)):
            np.testing.assert_allclose(
                result.bars[name], table[rows, before, held], rtol=1e-9, atol=1e-9 * max_position * mark.max()
            )
        np.testing.assert_allclose(
            result.fills["slippage"], parts.slippage[rows, before, held][before != held], rtol=1e-9
        )


def test_orders_at_one_snapshot_lose_together_what_one_order_loses(engine_on, scripted, book_bars):
    book = {"size": 1.0, "tick": 10.0}
    whole = engine_on(book_bars([30_000.0], **book), cash=1e9).run(scripted({0: [Order(SPOT, "buy", 16.0)]}))
    parts = [Order(SPOT, "buy", size) for size in (1.5, 4.5, 3.0, 7.0)]
    split = engine_on(book_bars([30_000.0], **book), cash=1e9).run(scripted({0: parts}))
    assert split.bars["slippage"][0] == pytest.approx(whole.bars["slippage"][0], rel=1e-12)
    assert split.fills["beyond_book"].to_list() == pytest.approx([0, 1, 3, 7])
    assert whole.fills["beyond_book"].to_list() == pytest.approx([11])


def test_partial_fills_what_is_there_and_reports_the_rest(engine_on, scripted, book_bars):
    bars = book_bars([103.0], size=1.0, tick=1.0)
    result = engine_on(bars, cash=1e4, depth_policy="partial").run(
        scripted({0: [Order(SPOT, "buy", 101.0, tag="big")]})
    )
    assert result.fills.select("size", "paid").row(0) == pytest.approx((5.0, sum(103.5 + i for i in range(5))))
    assert result.positions["position"].to_list() == pytest.approx([5.0])
    assert result.bars["cash"][0] == pytest.approx(1e4 - 527.5)
    assert result.rejections.select("tag", "reason", "size").row(0) == ("big", "depth", pytest.approx(96.0))


def test_reject_refuses_the_whole_order(engine_on, scripted, book_bars):
    script = {0: [Order(SPOT, "buy", 5.1), Order(SPOT, "sell", 5.0)]}
    result = engine_on(book_bars([103.0], size=1.0, tick=1.0), depth_policy="reject").run(scripted(script))
    assert result.fills.select("side", "size").rows() == [("sell", pytest.approx(5.0))]
    assert result.rejections.select("reason", "size").rows() == [("depth", 5.1)]
