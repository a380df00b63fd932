"""Round trips: each stretch of a ledger with a position of one sign, from its entry to its exit."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.ledger import RECONCILIATION_TOLERANCE, Ledger
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.types import BoolArray, FloatArray

TRIP_SCHEMA: Final[dict[str, pl.DataType]] = {
    "side": pl.String(),
    "entry_row": pl.Int64(),
    "exit_row": pl.Int64(),
    "entry_time": TIMESTAMP,
    "exit_time": TIMESTAMP,
    "bars_held": pl.Int64(),
    "size": pl.Float64(),
    "entry_price": pl.Float64(),
    "exit_price": pl.Float64(),
    "gross_pnl": pl.Float64(),
    "fees": pl.Float64(),
    "slippage": pl.Float64(),
    "net_pnl": pl.Float64(),
    "is_open": pl.Boolean(),
}
"""Columns of `round_trips`: bars by row and end (UTC), sizes in base units, prices and money in quote units."""

_FINITE: Final = ("mark", "position", "turnover", "fee", "slippage")


def round_trips(ledger: Ledger) -> pl.DataFrame:
    """The ledger's round trips in order of entry, as `TRIP_SCHEMA`.

    A flip closes one trip and opens the next; a bar that settles its position before taking it again
    does too. Such a bar's fee and slippage are shared by the units closed and opened. Prices include
    the slippage: entry = mark +- slippage per unit, exit likewise. Gross is the profit at the mark,
    net = gross - fees - slippage, so the net profits sum to the ledger's change of net value. A trip
    still open at the end is marked to the last mark, without costs of an exit, and flagged.

    Raises:
        ValueError: a mark, position, turnover, fee or slippage that is not finite; names the row.
    """
    for name in _FINITE:
        _check_finite(ledger, name)
    position = ledger.position
    opening = np.concatenate([[0.0], position[:-1]])
    starts, ends = _crossings(ledger, opening)
    entry = np.flatnonzero(starts)
    if not len(entry):
        return pl.DataFrame(schema=TRIP_SCHEMA)
    closed = np.flatnonzero(ends)
    is_open = np.arange(len(entry)) >= len(closed)
    out = np.append(closed, np.full(len(entry) - len(closed), len(ledger) - 1))
    side = np.sign(position[entry])
    size = np.maximum.reduceat(np.abs(position), entry)
    gross = np.add.reduceat(position * np.append(np.diff(ledger.mark), 0.0), entry)
    units = np.where(ends, np.abs(opening), 0.0) + np.where(starts, np.abs(position), 0.0)
    per_unit = ledger.slippage / np.where(units > 0, units, np.inf)
    fees, slippage = (_shared(costs, position, opening, starts, ends, units) for costs in (ledger.fee, ledger.slippage))
    return pl.DataFrame(
        {
            "side": np.where(side > 0, "long", "short"),
            "entry_row": entry,
            "exit_row": out,
            "entry_time": _utc(ledger, entry),
            "exit_time": _utc(ledger, out),
            "bars_held": out - entry,
            "size": size,
            "entry_price": ledger.mark[entry] + side * per_unit[entry],
            "exit_price": ledger.mark[out] - side * np.where(is_open, 0.0, per_unit[out]),
            "gross_pnl": gross,
            "fees": fees,
            "slippage": slippage,
            "net_pnl": gross - fees - slippage,
            "is_open": is_open,
        },
        schema=TRIP_SCHEMA,
    )


def _crossings(ledger: Ledger, opening: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Bars at which a trip starts and bars at which one ends, bool (T,) each; starts and ends alternate."""
    position = ledger.position
    # Through flat: from or to it, over it, or by a turnover of all that was held and all that is held.
    both = (np.abs(opening) + np.abs(position)) * (1 - RECONCILIATION_TOLERANCE)
    crossing = (opening * position <= 0) | (ledger.turnover >= both)
    return crossing & (position != 0), crossing & (opening != 0)


def _shared(
    costs: FloatArray, position: FloatArray, opening: FloatArray, starts: BoolArray, ends: BoolArray, units: FloatArray
) -> FloatArray:
    """Costs by trip: its share of the entry's, all that fell due inside, its share of the exit's."""
    entry = np.flatnonzero(starts)
    rate = costs / np.where(units > 0, units, np.inf)
    inside = np.where(~(starts | ends) & (position != 0), costs, 0.0)
    paid: FloatArray = rate[entry] * np.abs(position[entry]) + np.add.reduceat(inside, entry)
    closed = np.flatnonzero(ends)
    paid[: len(closed)] += rate[closed] * np.abs(opening[closed])
    return paid


def _check_finite(ledger: Ledger, name: str) -> None:
    values: FloatArray = getattr(ledger, name)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"a ledger's {name} must be finite, got {values[row]} at {ledger.timestamps[row]} (row {row})")


def _utc(ledger: Ledger, rows: np.ndarray) -> pl.Series:
    return pl.Series(ledger.timestamps[rows].astype("datetime64[us]")).dt.replace_time_zone("UTC")
