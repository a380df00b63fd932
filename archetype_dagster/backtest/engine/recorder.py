"""Keeps what happens in a run as plain rows, and makes the result's frames of them at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.backtest.engine.result import (
    EQUITY_SCHEMA,
    ERRORS_SCHEMA,
    FILLS_SCHEMA,
    FUNDING_SCHEMA,
    REJECTIONS_SCHEMA,
    BacktestResult,
)
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.types import IndexArray

_SUMS: Final = ("price_profit", "funding", "fee", "slippage")
_BAR: Final = ("cash", "net_value", "realised", "unrealised", *_SUMS)
_LEG: Final = ("position", "mark", "entry", "realised", "unrealised")


class Recorder:
    """Rows of one run; times are microseconds since 1970.

    Args:
        instruments: the legs.
    """

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self.fills: list[tuple[Any, ...]] = []
        self.funding: list[tuple[Any, ...]] = []
        self.rejections: list[tuple[Any, ...]] = []
        self.equity: list[tuple[int, str, float]] = []
        self._instruments = [instrument.symbol for instrument in instruments]
        self._times: list[int] = []
        self._bars: list[tuple[float, ...]] = []
        self._legs: list[tuple[float, ...]] = []

    def bar(self, now: int, portfolio: Portfolio, net_value: float) -> None:
        """Note the account at a bar's end."""
        self._times.append(now)
        self.equity.append((now, "bar", net_value))
        realised = unrealised = 0.0
        for holding in portfolio.holdings:
            open_profit = holding.unrealised
            realised, unrealised = realised + holding.realised, unrealised + open_profit
            self._legs.append((holding.position, holding.mark, holding.entry, holding.realised, open_profit))
        sums = (portfolio.price_profit, portfolio.funding, portfolio.fees, portfolio.slippage)
        self._bars.append((portfolio.cash, net_value, realised, unrealised, *sums))

    def result(
        self, errors: Sequence[tuple[Any, ...]], *, initial_cash: float, stopped: str | None, ruined: bool
    ) -> BacktestResult:
        """The frames of everything noted so far."""
        count = len(self._times)
        times = _times(np.asarray(self._times, dtype=np.int64))
        return BacktestResult(
            bars=self._bar_frame(times, initial_cash),
            positions=self._position_frame(times),
            fills=_frame(self.fills, FILLS_SCHEMA),
            funding=_frame(self.funding, FUNDING_SCHEMA),
            rejections=_frame(self.rejections, REJECTIONS_SCHEMA),
            equity=_frame(self.equity, EQUITY_SCHEMA),
            subscriber_errors=pl.DataFrame(list(errors), schema=ERRORS_SCHEMA, orient="row"),
            initial_cash=initial_cash,
            stopped=stopped,
            ruined=ruined and count > 0,
        )

    def _bar_frame(self, times: pl.Series, initial_cash: float) -> pl.DataFrame:
        values = dict(zip(_BAR, np.reshape(self._bars, (len(times), len(_BAR))).T, strict=True))
        changes = {name: np.diff(values.pop(name), prepend=0.0) for name in _SUMS}
        reward = np.diff(values["net_value"], prepend=initial_cash)
        columns = {name: values[name] for name in ("cash", "net_value")} | {"reward": reward} | changes
        columns |= {name: values[name] for name in ("realised", "unrealised")}
        return pl.DataFrame([times, *(pl.Series(name, column) for name, column in columns.items())])

    def _position_frame(self, times: pl.Series) -> pl.DataFrame:
        count, legs = len(times), len(self._instruments)
        numbers = np.reshape(self._legs, (count * legs, len(_LEG))).T
        return pl.DataFrame(
            [
                times.gather(np.repeat(np.arange(count), legs)),
                pl.Series("instrument", self._instruments * count, dtype=pl.String),
                *(pl.Series(name, column) for name, column in zip(_LEG, numbers, strict=True)),
            ]
        )


def _times(micros: IndexArray) -> pl.Series:
    return pl.Series("timestamp", micros).cast(pl.Datetime("us")).dt.replace_time_zone("UTC").cast(TIMESTAMP)


def _frame(rows: Sequence[tuple[Any, ...]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    whole = pl.DataFrame(list(rows), schema=dict(schema) | {"timestamp": pl.Int64()}, orient="row")
    return whole.with_columns(_times(whole["timestamp"].to_numpy().astype(np.int64)))
