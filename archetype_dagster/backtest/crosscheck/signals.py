"""What every engine is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.replay import PricedBars, settled_rows
from archetype_dagster.settings import ExecutionSettings
from archetype_dagster.types import FLAT, ActionArray, FloatArray, IndexArray

_CREDIT: Final = 10.0


@dataclass(frozen=True)
class Signals:
    """Targets and fill prices, oldest first: a row per bar, and one more where a bar settles its position first.

    Attributes:
        target: float64 (n,), position wanted after each row, base units.
        fill_price: float64 (n,), price at which an order of the row fills: mark +- slippage per unit,
            quote units; the mark where none is due.
        mark: float64 (n,), mark price of the row's bar, quote units.
        last: int64 (T,), last row of each bar.
        commission_rate: commission as a fraction of the traded notional at the mark.
        initial_capital: V_1, quote units.
        credit: what an engine may overdraw its cash by, quote units, so that none refuses an order
            that ours fills; it is part of the engine's cash and of no result.
    """

    target: FloatArray
    fill_price: FloatArray
    mark: FloatArray
    last: IndexArray
    commission_rate: float
    initial_capital: float
    credit: float


@dataclass(frozen=True)
class EngineAccount:
    """What an engine made of the signals at the end of each row.

    Attributes:
        position: float64 (n,), base units.
        cash: float64 (n,), the credit included, quote units.
        net_value: float64 (n,), cash and the position at the mark, the credit included, quote units.
    """

    position: FloatArray
    cash: FloatArray
    net_value: FloatArray


def signals_of(
    actions: ActionArray,
    priced: PricedBars,
    settings: ExecutionSettings,
    *,
    initial_capital: float,
    horizon_starts: IndexArray | None = None,
) -> Signals:
    """Signals of one decided action per bar.

    An action reaches the market `execution_delay_bars` later in its own segment, or never; until
    another arrives the position stays. Nothing is taken from a ledger but what was decided.

    Args:
        actions: int8 (T,), 0 short, 1 flat, 2 long.
        priced: the T bars.
        settings: delay, commission and horizon boundary.
        initial_capital: V_1, quote units.
        horizon_starts: int64 (k,), needed where `horizon_boundary` is `settle`.

    Raises:
        ValueError: `settle` without horizon_starts.
    """
    held = _arrived(actions, priced, settings.execution_delay_bars)
    settles = settled_rows(settings, priced, horizon_starts)
    legs = np.where(settles, 2, 1)
    last = np.cumsum(legs) - 1
    bar = np.repeat(np.arange(len(priced)), legs)
    final = np.zeros(len(bar), dtype=np.bool_)
    final[last] = True
    after = np.where(final, held[bar], FLAT)
    before = np.concatenate([[FLAT], after[:-1]])
    change = (after - before).astype(np.float64)
    units = priced.max_position * np.abs(change)
    mark = priced.mark[bar]
    loss = priced.slippage[bar, before, after] / np.where(units > 0, units, np.inf)
    fill_price = mark + np.sign(change) * loss
    return Signals(
        target=priced.max_position * (after - FLAT).astype(np.float64),
        fill_price=fill_price,
        mark=mark,
        last=last,
        commission_rate=settings.commission_rate,
        initial_capital=initial_capital,
        credit=_CREDIT * priced.max_position * float(np.maximum(mark, fill_price).max()),
    )


def _arrived(actions: ActionArray, priced: PricedBars, delay: int) -> IndexArray:
    """Action whose order reached the market last, int64 (T,); flat before the first one."""
    orders = pl.DataFrame({"action": actions, "segment": priced.segment})
    newest = pl.col("action").shift(delay).over("segment").forward_fill().fill_null(FLAT)
    return orders.select(newest).to_series().to_numpy().astype(np.int64)
