"""What a run did and was worth, as Polars frames, and the metrics of its net value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.performance import Performance, bars_per_year, performance
from archetype_dagster.market.bars import TIMESTAMP
from archetype_dagster.types import FloatArray

_F: Final = pl.Float64()
_S: Final = pl.String()

FILLS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "instrument": _S,
    "order_id": pl.Int64(),
    "tag": _S,
    "cause": _S,
    "side": _S,
    "size": _F,
    "price": _F,
    "paid": _F,
    "beyond_book": _F,
    "slippage": _F,
    "fee": _F,
    "liquidation_fee": _F,
    "liquidity": _S,
    "realised": _F,
    "position": _F,
    "entry": _F,
}
"""One row a fill: `paid` is price times size; `slippage` its loss against the mark, negative for a gain; `fee` without
the liquidation's; `position` and average `entry` after it."""

FUNDING_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "instrument": _S,
    "position": _F,
    "mark": _F,
    "rate": _F,
    "amount": _F,
}
"""One row a settlement on an open position; `amount` is what was received, negative for paid."""

REJECTIONS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "timestamp": TIMESTAMP,
    "instrument": _S,
    "order_id": pl.Int64(),
    "tag": _S,
    "reason": _S,
    "detail": _S,
    "size": _F,
}
"""One row for each order, or part of one, that was refused or withdrawn by another than its owner."""

EQUITY_SCHEMA: Final[dict[str, pl.DataType]] = {"timestamp": TIMESTAMP, "event": _S, "net_value": _F}
"""Net value after each event: `snapshot`, `funding`, `fill`, `liquidation` and, at each bar's end, `bar`."""

ERRORS_SCHEMA: Final[dict[str, pl.DataType]] = {"timestamp": TIMESTAMP, "subscriber": _S, "error": _S}
"""Exceptions of subscribers under the policy `continue`."""


@dataclass(frozen=True)
class BacktestResult:
    """A run's record; money in quote units, sizes and positions in base units.

    Attributes:
        bars: one row a bar end, after its orders: `timestamp`, `cash`, `net_value`, `reward` (change of net value
            since the row before) and its parts `price_profit`, `funding`, `fee` and `slippage` (reward =
            price_profit + funding - fee - slippage), `realised` and `unrealised` profit so far.
        positions: one row a bar end and leg: `timestamp`, `instrument`, `position`, `mark`, `entry`, `realised`,
            `unrealised`.
        fills: FILLS_SCHEMA.
        funding: FUNDING_SCHEMA.
        rejections: REJECTIONS_SCHEMA.
        equity: EQUITY_SCHEMA.
        subscriber_errors: ERRORS_SCHEMA.
        initial_cash: V_1, net value before the first bar.
        stopped: why trading ended early: `max_drawdown`, the kill switch's reason or `ruin`; None otherwise.
        ruined: the last net value is zero or less and the run ended there.
    """

    bars: pl.DataFrame
    positions: pl.DataFrame
    fills: pl.DataFrame
    funding: pl.DataFrame
    rejections: pl.DataFrame
    equity: pl.DataFrame
    subscriber_errors: pl.DataFrame
    initial_cash: float
    stopped: str | None
    ruined: bool

    @property
    def fees(self) -> pl.DataFrame:
        """One row a fee: `timestamp`, `instrument`, `order_id`, `kind` (taker, maker, liquidation), `amount`."""
        columns = ("timestamp", "instrument", "order_id")
        trading = self.fills.select(*columns, kind="liquidity", amount="fee")
        forced = self.fills.filter(pl.col("liquidation_fee") != 0).select(
            *columns, kind=pl.lit("liquidation"), amount="liquidation_fee"
        )
        return pl.concat([trading, forced]).sort("timestamp", maintain_order=True)

    @property
    def net_value_path(self) -> FloatArray:
        """float64 (T + 1,), the initial cash followed by the net value of each bar."""
        return np.concatenate([[self.initial_cash], self.bars["net_value"].to_numpy()])

    def performance(self, periods_per_year: float | None = None) -> Performance:
        """The six metrics of `net_value_path`; n comes from the bars' own clock unless it is given.

        Raises:
            MarketDataError: fewer than two bars, or irregular ones, and no `periods_per_year`.
        """
        if periods_per_year is None:
            periods_per_year = bars_per_year(self.bars["timestamp"].dt.replace_time_zone(None).to_numpy())
        return performance(self.net_value_path, periods_per_year=periods_per_year)
