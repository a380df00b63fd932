"""vectorbt: an array-based engine, compiled on first use. Imported only where it is used."""

from __future__ import annotations

from typing import Any, Final

import vectorbt as vbt

from archetype_dagster.backtest.crosscheck.signals import EngineAccount, Signals
from archetype_dagster.types import FloatArray

VERSION: Final = str(vbt.__version__)


def replay_signals(signals: Signals) -> EngineAccount:
    """Trade the signals through vectorbt's order simulation: target amounts, long and short, all or nothing.

    Args:
        signals: n rows.

    Returns:
        The portfolio's own position, cash and value after each of the n rows.
    """
    portfolio = vbt.Portfolio.from_orders(
        close=signals.mark,
        size=signals.target,
        size_type="targetamount",
        price=signals.fill_price,
        # The engine charges a fraction of the filled notional; ours is a fraction of the notional at the mark.
        fees=signals.commission_rate * signals.mark / signals.fill_price,
        init_cash=signals.initial_capital + signals.credit,
        direction="both",
        allow_partial=False,
    )
    return EngineAccount(
        position=_column(portfolio.assets()), cash=_column(portfolio.cash()), net_value=_column(portfolio.value())
    )


def _column(values: Any) -> FloatArray:
    column: FloatArray = values.to_numpy(dtype="float64")
    return column
