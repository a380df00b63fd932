"""Real recorded books drive the order book: never crossed, every size shown is there, costs are the tables' walk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archetype_dagster.backtest.engine.book_diff import apply_diff, diff
from archetype_dagster.backtest.engine.book_records import BUY, SELL
from archetype_dagster.backtest.engine.instruments import spot_instrument
from archetype_dagster.backtest.engine.order_book import OrderBook
from archetype_dagster.market.bars import side_matrix
from archetype_dagster.market.book_walk import walk_book
from archetype_dagster.market.sources import read_raw
from archetype_dagster.settings import load_settings

CAPTURES = {
    "binance_spot_btcusdt_book_1s_20lvl_2024-08-08.parquet": ("BTC", 8.0),
    "binance_spot_ethusdt_book_1s_20lvl_2024-08-08.parquet": ("ETH", 100.0),
    "binance_usdm_btcusdt_book_1s_20lvl_2024-08-08.parquet": ("BTC", 8.0),
    "binance_usdm_ethusdt_book_1s_20lvl_2024-08-08.parquet": ("ETH", 100.0),
}
LEVELS = 20


@pytest.mark.parametrize("name", CAPTURES)
def test_a_recorded_book_drives_it_and_never_crosses(shared_data: Path, name: str) -> None:
    base, size = CAPTURES[name]
    chosen = {"market.source": "book-table", "market.path": str(shared_data / "book" / name)}
    settings = load_settings("smoke", chosen)
    books = read_raw(settings.market, settings.pair(base)).books.collect()
    sides = [side_matrix(books, side, field, LEVELS) for side in ("bid", "ask") for field in ("price", "size")]
    book, clean = OrderBook(), OrderBook()
    rng = np.random.default_rng(1)
    told, filled, instrument = book.snapshot(), 0.0, spot_instrument(base, "USDT")
    ahead: dict[int, float] = {}
    for row in range(0, books.height, 3):
        levels = [side[row] for side in sides]
        fills = book.replace_market_levels(*levels)
        filled += fills["size"].sum()
        orders = book.snapshot().orders
        for code, sizes in ((BUY, levels[1]), (SELL, levels[3])):
            strangers = (orders["owner"] == 0) & (orders["side"] == code)
            shown = orders["size"][strangers].sum() + fills["size"][fills["aggressor"] == code].sum()
            np.testing.assert_allclose(shown, sizes.sum(), rtol=1e-12)
        check_queues(book, ahead)
        clean.replace_market_levels(*levels)
        for side, (prices, sizes) in (("buy", levels[:2]), ("sell", levels[2:])):
            shown = sizes > 0
            for found, source in zip(clean.depth(side), (prices[shown], sizes[shown]), strict=True):
                np.testing.assert_array_equal(found, source)
            walked = walk_book(prices[shown], sizes[shown], size)
            cost = clean.market_cost("sell" if side == "buy" else "buy", size)
            np.testing.assert_allclose([cost.cash, cost.filled], [walked.cash, walked.filled], rtol=1e-12)
        side = ("buy", "sell")[row % 2]
        at = levels[0 if side == "buy" else 2][rng.integers(0, 4)]
        ahead[book.submit(side, 0.01, price=at).order_id] = np.inf
        if row % 4 == 0:
            book.submit(side, 0.5, order_type="market", owner=2)
        assert book.best_bid < book.best_ask
        now = book.snapshot()
        told = apply_diff(told, diff(told, now, instrument=instrument, timestamp=books["timestamp"][row]))
        assert told.equals(now)
    assert filled > 0


def check_queues(book: OrderBook, ahead: dict[int, float]) -> None:
    """No own order's size ahead may have grown; those that left are forgotten."""
    for number in list(ahead):
        if number not in book:
            del ahead[number]
            continue
        now = book.order(number).size_ahead
        assert now <= ahead[number] + 1e-12
        ahead[number] = now
