"""Statistics of the round trips, and what trading cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from archetype_dagster.backtest.audit.trips import round_trips
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.market.impact import BPS
from archetype_dagster.types import BoolArray, JsonDict


@dataclass(frozen=True)
class TradeStatistics:
    """How a ledger traded. What is said of wins, losses and holding counts closed trips only.

    Attributes:
        trips: round trips, an open one included.
        open_trips: 1 where a position is still held at the end, else 0.
        win_rate: share of closed trips with a net profit above zero; None without a closed trip.
        profit_factor: sum of net profits over sum of net losses; None where nothing was lost.
        average_holding_bars: mean bars from entry to exit; None without a closed trip.
        longest_losing_run: most closed trips in a row with a net loss.
        traded_notional: units bought and sold times the mark, quote units.
        turnover_per_year: traded notional over the initial capital, per year.
        exposure_long: share of bars that end long.
        exposure_short: share of bars that end short.
        exposure_flat: share of bars that end flat.
        fees: commission, quote units.
        slippage: loss against the mark by crossing the book, quote units.
        fees_bps: commission in basis points of the traded notional; None without a trade.
        slippage_bps: slippage likewise.
        gross_pnl: profit of all trips at the mark, before costs, quote units.
        net_pnl: profit of all trips after costs, quote units.
    """

    trips: int
    open_trips: int
    win_rate: float | None
    profit_factor: float | None
    average_holding_bars: float | None
    longest_losing_run: int
    traded_notional: float
    turnover_per_year: float
    exposure_long: float
    exposure_short: float
    exposure_flat: float
    fees: float
    slippage: float
    fees_bps: float | None
    slippage_bps: float | None
    gross_pnl: float
    net_pnl: float

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON; undefined ones are None."""
        return dict(vars(self))


def trade_statistics(ledger: Ledger, *, periods_per_year: float, trips: pl.DataFrame | None = None) -> TradeStatistics:
    """Statistics of a ledger.

    Args:
        ledger: T bars.
        periods_per_year: n, bars in a year; see `bars_per_year`.
        trips: its `round_trips`, where the caller has them.

    Raises:
        ValueError: a periods_per_year that is not positive and finite, or a ledger that is not finite.
    """
    if not (np.isfinite(periods_per_year) and periods_per_year > 0):
        raise ValueError(f"periods_per_year must be positive and finite, got periods_per_year={periods_per_year}")
    trips = round_trips(ledger) if trips is None else trips
    closed = trips.filter(~pl.col("is_open"))
    net = closed["net_pnl"].to_numpy()
    won, lost = float(net[net > 0].sum()), float(-net[net < 0].sum())
    notional = float((ledger.turnover * ledger.mark).sum())
    fees, slippage = float(ledger.fee.sum()), float(ledger.slippage.sum())
    years = len(ledger) / periods_per_year
    return TradeStatistics(
        trips=trips.height,
        open_trips=trips.height - closed.height,
        win_rate=float(np.mean(net > 0)) if len(net) else None,
        profit_factor=won / lost if lost > 0 else None,
        average_holding_bars=float(closed["bars_held"].to_numpy().mean()) if len(net) else None,
        longest_losing_run=_longest_run(net < 0),
        traded_notional=notional,
        turnover_per_year=notional / ledger.initial_capital / years,
        exposure_long=float(np.mean(ledger.position > 0)),
        exposure_short=float(np.mean(ledger.position < 0)),
        exposure_flat=float(np.mean(ledger.position == 0)),
        fees=fees,
        slippage=slippage,
        fees_bps=fees / notional / BPS if notional > 0 else None,
        slippage_bps=slippage / notional / BPS if notional > 0 else None,
        gross_pnl=float(trips["gross_pnl"].sum()),
        net_pnl=float(trips["net_pnl"].sum()),
    )


def _longest_run(flags: BoolArray) -> int:
    """Most true values in a row."""
    rows = np.arange(1, len(flags) + 1)
    since = rows - np.maximum.accumulate(np.where(flags, 0, rows))
    return int(since.max(initial=0))
