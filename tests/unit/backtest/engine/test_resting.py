"""Resting orders: when they fill, where they stand in the queue, and how they are changed."""

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import BaseStrategy, Order, Target, spot_instrument, swap_instrument
from archetype_dagster.backtest.engine import Amend, Cancel, OrderBook, apply_diff

SPOT, SWAP = spot_instrument("BTC", "USDT"), swap_instrument("BTC", "USDT")
BID = Order(SPOT, "buy", 2.0, 100.0, "limit", "bid")
WIDE = [(101.0, 9.0)]


def trades_at(minutes, prices, sizes, taker_buys) -> pl.DataFrame:
    start = np.datetime64("2024-01-01T00:00", "us")
    times = start + (np.asarray(minutes) * 60_000_000).astype("timedelta64[us]")
    return pl.DataFrame(
        {"timestamp": pl.Series(times).dt.replace_time_zone("UTC"), "price": prices, "size": sizes}
    ).with_columns(taker_buy=pl.Series(taker_buys, dtype=pl.Boolean))


def test_an_order_fills_when_the_opposite_best_reaches_it_by_what_is_shown_there(engine_on, scripted, bars_of):
    bids, asks = [[(99.0, 5.0)]] * 4, [WIDE, [(100.5, 9.0)], [(100.0, 0.5), (101.0, 9.0)], [(98.0, 1.0), (99.5, 4.0)]]
    bids = [*bids[:3], [(97.0, 5.0)]]
    strategy = scripted({0: [BID]})
    result = engine_on(bars_of(bids, asks), cash=1e3).run(strategy)
    assert result.positions["position"].to_list() == pytest.approx([0, 0, 0.5, 2.0])
    assert result.fills["price"].to_list() == pytest.approx([100, 100])
    assert result.fills["liquidity"].to_list() == ["maker", "maker"]
    assert [len(ctx.open_orders) for ctx in strategy.contexts] == [0, 1, 1, 0]
    assert strategy.contexts[2].open_orders[0].size == pytest.approx(1.5)


def test_a_low_of_the_bar_alone_fills_nothing(engine_on, scripted, bars_of):
    bars = bars_of([[(99.0, 5.0)]] * 2, [WIDE] * 2).with_columns(low=pl.lit(90.0))
    assert engine_on(bars).run(scripted({0: [BID]})).fills.height == 0


def test_trades_use_up_the_queue_before_the_order(engine_on, scripted, bars_of):
    """Three stand before it; trades of 1 and 2.5 at its price reach it by 0.5, buyers and unknown takers by nothing."""
    bids = [[(100.0, 3.0), (99.0, 9.0)]] * 2
    trades = trades_at([11, 12, 13, 14, 25], [100.0] * 5, [1.0, 7.0, 7.0, 2.5, 50.0], [False, True, None, False, False])
    strategy = scripted({0: [BID]})
    result = engine_on(bars_of(bids, [WIDE] * 2), leg={"trades": trades}).run(strategy)
    assert result.fills.select("size", "price", "liquidity").row(0) == (pytest.approx(0.5), 100.0, "maker")
    assert result.fills["timestamp"][0].minute == 14


def test_a_snapshot_moves_the_order_forward_only_when_less_is_shown_than_stood_before_it(engine_on, scripted, bars_of):
    sizes = [3.0, 8.0, 1.25, 6.0]
    strategy = scripted({0: [BID]})
    engine_on(bars_of([[(100.0, size)] for size in sizes], [WIDE] * 4)).run(strategy)
    ahead = [ctx.open_orders[0].size_ahead for ctx in strategy.contexts[1:]]
    assert ahead == pytest.approx([3.0, 1.25, 1.25])


def test_finer_snapshots_fill_between_the_bars(engine_on, scripted, bars_of, book_frame):
    finer = book_frame([5, 13, 16, 20], [[(99.0, 5.0)]] * 4, [WIDE, [(100.0, 4.0)], WIDE, [(50.0, 1.0)]])
    finer = finer.with_columns(bid1_price=pl.Series([99.0, 99.0, 99.0, 40.0]))
    result = engine_on(bars_of([[(99.0, 5.0)]] * 2, [WIDE] * 2), leg={"snapshots": finer}).run(scripted({0: [BID]}))
    assert result.fills.select("size", "price").rows() == [(pytest.approx(2.0), 100.0)]
    assert result.fills["timestamp"][0].minute == 13
    assert result.equity["event"].to_list() == ["bar", "fill", "snapshot", "snapshot", "bar"]


def test_cancel_and_amend_go_by_the_orders_number(engine_on, scripted, bars_of):
    def shrink(ctx):
        return [Amend(ctx.open_orders[0].order_id, size=1.0)]

    def reprice(ctx):
        return [Amend(ctx.open_orders[0].order_id, price=101.0, size=3.0)]

    script = {0: [BID], 1: shrink, 2: reprice, 3: lambda ctx: [Cancel(1), Cancel(77)]}
    strategy = scripted(script)
    asks = [[(101.0, 2.0), (103.0, 9.0)]] * 3 + [[(103.0, 9.0)]] * 2
    result = engine_on(bars_of([[(100.0, 3.0)]] * 5, asks), cash=1e3).run(strategy)
    resting = [[(one.price, one.size, one.size_ahead) for one in ctx.open_orders] for ctx in strategy.contexts]
    assert resting[1:3] == [
        [(100.0, pytest.approx(2), pytest.approx(3))],
        [(100.0, pytest.approx(1), pytest.approx(3))],
    ]
    assert result.fills.select("order_id", "size", "price", "liquidity").row(0) == (1, pytest.approx(2), 101.0, "taker")
    assert resting[3:] == [[(101.0, pytest.approx(1), 0.0)], []]
    assert result.rejections.select("order_id", "reason").rows() == [(77, "unknown_order")]


@pytest.mark.parametrize(
    ("order", "filled", "reason"),
    [
        (Order(SPOT, "buy", 1.0, 101.0, "post_only"), 0.0, "would_cross"),
        (Order(SPOT, "buy", 9.5, 101.0, "fok"), 0.0, "cannot_fill"),
        (Order(SPOT, "buy", 9.5, 101.0, "ioc"), 9.0, "expired"),
        (Order(SPOT, "buy", 9.0, 101.0, "fok"), 9.0, None),
        (Order(SPOT, "buy", 1.0, 100.5, "ioc"), 0.0, "expired"),
    ],
)
def test_what_may_not_rest_is_refused_with_its_reason(engine_on, scripted, bars_of, order, filled, reason):
    result = engine_on(bars_of([[(99.0, 5.0)]], [WIDE]), cash=1e4).run(scripted({0: [order]}))
    assert result.fills["size"].sum() == pytest.approx(filled)
    assert result.rejections["reason"].to_list() == ([] if reason is None else [reason])
    if reason is not None:
        assert result.rejections["size"][0] == pytest.approx(order.size - filled)


@pytest.mark.parametrize(
    ("policy", "filled", "refused"),
    [("cancel_resting", 4.0, [(1, "self_trade")]), ("cancel_incoming", 1.0, [(2, "self_trade")])],
)
def test_an_order_that_would_meet_an_own_one_follows_the_named_policy(
    engine_on, scripted, bars_of, policy, filled, refused
):
    script = {0: [Order(SPOT, "buy", 1.0, 99.5, "limit"), Order(SPOT, "sell", 4.0)]}
    bars = bars_of([[(100.0, 1.0), (99.0, 9.0)]], [WIDE])
    result = engine_on(bars, cash=1e4, self_trade=policy).run(scripted(script))
    assert result.fills["size"].sum() == pytest.approx(filled)
    assert result.rejections.select("order_id", "reason").rows() == refused


def test_own_orders_that_may_trade_are_booked_on_both_sides(engine_on, scripted, bars_of):
    """Sold 4 into an own bid of 1 at 99.5 and the market's at 99: 3 are sold, and both sides of the own trade pay."""
    script = {0: [Order(SPOT, "buy", 1.0, 99.5, "limit"), Order(SPOT, "sell", 4.0)], 1: [Target(SPOT, 0.0)]}
    bars = bars_of([[(99.0, 9.0)]] * 2, [WIDE] * 2)
    result = engine_on(bars, cash=1e4, rate=0.01, fee_basis="fill", self_trade="allow").run(scripted(script))
    assert result.fills.select("order_id", "liquidity", "paid", "position").rows() == [
        (2, "taker", pytest.approx(99.5 + 297), -4.0),
        (1, "maker", pytest.approx(99.5), -3.0),
        (3, "taker", pytest.approx(303), 0.0),
    ]
    assert result.bars["cash"].to_list() == pytest.approx([1e4 + 297 - 0.01 * (396.5 + 99.5), 1e4 - 6 - 0.01 * 799])
    assert result.rejections.height == 0


def test_a_trade_far_larger_than_any_book_shown_fills_what_rests(engine_on, scripted, bars_of):
    trades = trades_at([11, 12], [100.0, 100.0], [1e-20, 5e4], [False, False])
    bars = bars_of([[(100.0, 3.0)]] * 2, [WIDE] * 2)
    result = engine_on(bars, cash=1e3, leg={"trades": trades}).run(scripted({0: [BID]}))
    assert result.fills.select("size", "price").rows() == [(2.0, 100.0)]


def test_sizes_that_the_book_cannot_count_are_refused_and_leave_no_dust(engine_on, scripted, book_bars):
    """Beside a book of 500, 0.001 is no whole number of steps: what rounding leaves of a position is none."""
    script = {
        0: [Order(SPOT, "buy", 0.001, 101.0, "limit"), Order(SPOT, "buy", 1e-16), Target(SPOT, 0.001 + 1e-16)],
        1: [Order(SPOT, "sell", 0.001), Target(SPOT, 0.0), Order(SPOT, "buy", 1e5, 50.0, "limit")],
    }
    bars = book_bars([100.0, 100.0], size=100.0, tick=1.0)
    result = engine_on(bars, cash=1e4, depth_policy="partial").run(scripted(script))
    assert result.positions["position"].to_list() == [pytest.approx(0.001, rel=1e-9), 0.0]
    assert result.fills.select("side", "beyond_book").rows() == [("buy", 0.0), ("sell", 0.0)]
    assert result.rejections.select("order_id", "reason").rows() == [(2, "too_small"), (6, "too_large")]


def test_an_answer_to_one_legs_fill_meets_the_other_legs_new_book(engine_on, scripted, bars_of, book_frame):
    """The bid at 90 fills when both markets fall to 80, in a snapshot or at a bar's end: the hedge gets 79, not 99."""

    class Hedge(scripted):
        def on_fill(self, fill, ctx):
            return [Order(SWAP, "sell", fill.size)] if fill.instrument == SPOT else None

    high, low = ([(99.0, 5.0)], [(101.0, 5.0)]), ([(79.0, 5.0)], [(81.0, 5.0)])
    finer = {"snapshots": book_frame([15], *([side] for side in low))}
    for leg, last in (({}, low), (finer, high)):
        bars = bars_of(*([one, other] for one, other in zip(high, last, strict=True)))
        engine = engine_on(bars, cash=1e4, leg=leg)
        engine.add(SWAP, bars, **leg)
        result = engine.run(Hedge({0: [Order(SPOT, "buy", 1.0, 90.0, "limit")]}))
        assert result.fills["price"].to_list() == pytest.approx([90.0, 79.0])
        assert result.fills["timestamp"].n_unique() == 1


def test_orders_do_not_outlive_a_gap(engine_on, scripted, bars_of):
    bars = bars_of([[(99.0, 5.0)]] * 4, [WIDE, WIDE, [(99.5, 9.0)], [(99.5, 9.0)]])
    bars = bars.with_columns(segment=pl.Series([0, 0, 1, 1], dtype=pl.Int32))
    result = engine_on(bars, cash=1e3, delay=1).run(scripted({0: [BID], 1: [Order(SPOT, "buy", 1.0, tag="late")]}))
    assert result.fills.height == 0
    assert result.rejections.select("tag", "reason").rows() == [("bid", "gap"), ("late", "gap")]


class TouchMaker(BaseStrategy):
    """Rests a little at both touches, anew at every bar."""

    def __init__(self):
        self.spreads = []

    def on_bar(self, bar, ctx):
        bid, ask = ctx.book.best_bid, ctx.book.best_ask
        self.spreads.append(ask - bid)
        quotes = [Order(SPOT, side, 0.01, price, "post_only") for side, price in (("buy", bid), ("sell", ask))]
        return [*(Cancel(one.order_id) for one in ctx.open_orders), *quotes]


def minute_bars(book) -> pl.DataFrame:
    """Bars whose book is the newest recorded one at each whole minute."""
    minute = pl.col("timestamp").dt.truncate("1m") + pl.duration(minutes=1)
    mid = (pl.col("bid1_price") + pl.col("ask1_price")) / 2
    bars = book.with_columns(
        open=mid, high=mid, low=mid, close=mid, volume=0.0, end=minute, segment=pl.lit(0, pl.Int32)
    )
    return bars.group_by("end", maintain_order=True).last().drop("timestamp").rename({"end": "timestamp"})


def test_a_real_capture_never_crosses_and_reaches_resting_orders(shared_data, engine_on):
    """A 1-second 20-level recording with its trades, on one clock; the diffs of all moments rebuild the last book."""
    utc = pl.col("ts_ms").cast(pl.Datetime("ms")).cast(pl.Datetime("us")).dt.replace_time_zone("UTC").alias("timestamp")
    folder = shared_data / "book"
    book = pl.read_parquet(folder / "binance_spot_btcusdt_book_1s_20lvl_2024-08-08.parquet").with_columns(utc)
    prints = pl.read_parquet(folder / "binance_spot_btcusdt_trades_2024-08-08.parquet").sort("ts_ms")
    trades = prints.select(utc, "price", size="quantity", taker_buy=pl.col("side") == "buy")
    engine = engine_on(minute_bars(book).drop("ts_ms"), cash=1e6, leg={"snapshots": book, "trades": trades})
    diffs = []
    engine.subscribe(diffs.append, "both")
    strategy = TouchMaker()
    result = engine.run(strategy)
    assert min(strategy.spreads) > 0
    assert result.fills.filter(pl.col("liquidity") == "maker").height > 3
    assert (result.equity["event"] == "snapshot").sum() > 200
    assert len(diffs) == result.bars.height + result.fills.height
    rebuilt = OrderBook(lot_size=engine.timeline.legs[0].lot_size).snapshot()
    for change in diffs:
        rebuilt = apply_diff(rebuilt, change)
    assert rebuilt.equals(engine.snapshot())
