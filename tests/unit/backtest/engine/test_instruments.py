"""Instruments refuse what they cannot be, and earn what their contracts say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from archetype_dagster.backtest.engine.instruments import Instrument, spot_instrument, swap_instrument


def test_symbols_and_settlement() -> None:
    assert spot_instrument("BTC", "USDT").symbol == "BTC-USDT"
    linear, inverse = swap_instrument("BTC", "USDT"), swap_instrument("BTC", "USD", "coin_margin", 100.0)
    assert (linear.symbol, linear.settle_currency) == ("BTC-USDT-SWAP", "USDT")
    assert (inverse.symbol, inverse.settle_currency) == ("BTC-USD-COIN-SWAP", "BTC")
    assert linear == swap_instrument("BTC", "USDT")
    assert hash(linear) == hash(swap_instrument("BTC", "USDT"))
    with pytest.raises(FrozenInstanceError):
        linear.base = "ETH"  # type: ignore[misc]


def test_linear_and_inverse_profit() -> None:
    assert spot_instrument("BTC", "USDT").profit(2.0, 100.0, 103.0) == 6.0
    assert swap_instrument("BTC", "USDT", contract_size=0.01).profit(-100.0, 100.0, 103.0) == -3.0
    inverse = swap_instrument("BTC", "USD", "coin_margin", 100.0)
    assert inverse.profit(10.0, 50_000.0, 40_000.0) == pytest.approx(1000 * (1 / 50_000 - 1 / 40_000), rel=1e-15)
    assert inverse.notional(10.0, 50_000.0) == 1000.0
    assert swap_instrument("BTC", "USDT", contract_size=0.01).notional(-100.0, 50_000.0) == -50_000.0


def test_grids() -> None:
    made = spot_instrument("BTC", "USDT", tick_size=0.01, lot_size=1e-5)
    made.check_order(0.12345, 61_837.63)
    assert made.on_tick(0.1 + 0.2) == 0.3
    for size, price, rule in (
        (0.123456, None, "size"),
        (1e-6, None, "size"),
        (0.1, 1.005, "price"),
        (0.0, 1.0, "size"),
    ):
        with pytest.raises(ValueError, match=rule):
            made.check_order(size, price)
    with pytest.raises(ValueError, match="price=nan"):
        made.on_tick(float("nan"))
    spot_instrument("BTC", "USDT").check_order(1 / 3, 1 / 7)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: spot_instrument("", "USDT"), "base"),
        (lambda: spot_instrument("BTC", "US DT"), "quote"),
        (lambda: spot_instrument("BTC", "BTC"), "differ"),
        (lambda: spot_instrument("BTC", "USDT", tick_size=float("nan")), "tick_size"),
        (lambda: spot_instrument("BTC", "USDT", lot_size=float("inf")), "lot_size"),
        (lambda: spot_instrument("BTC", "USDT", lot_size=-1.0), "lot_size"),
        (lambda: swap_instrument("BTC", "USDT", contract_size=float("nan")), "contract_size"),
        (lambda: swap_instrument("BTC", "USDT", contract_size=float("inf")), "contract_size"),
        (lambda: swap_instrument("BTC", "USDT", contract_size=0.0), "contract_size"),
        (lambda: swap_instrument("BTC", "USDT", "cash"), "settle"),
        (lambda: Instrument("future", "BTC", "USDT"), "kind"),
        (lambda: Instrument("spot", "BTC", "USDT", contract_size=2.0), "spot instrument"),
    ],
)
def test_what_is_no_instrument_is_refused_by_name(make: Callable[[], Instrument], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
