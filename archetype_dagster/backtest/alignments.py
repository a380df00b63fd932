"""How much of a result is luck of where the horizons begin: the policy on all h alignments of its horizons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.backtest.performance import Performance, mean_performance, performance
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import Settings
from archetype_dagster.types import FloatArray, IndexArray, NoProgress, Progress

QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
EQUAL_WEIGHT: Final = "equal_weight"


@dataclass(frozen=True)
class Alignments:
    """One account per alignment on the same T test bars; alignment k begins k rows into each segment.

    Attributes:
        timestamps: datetime64[us] (T,), bar ends, UTC.
        net_values: float64 (h, T + 1), initial capital and net value of each bar, quote units; zero from ruin on.
        trades: int64 (h,), bars with a trade.
        periods_per_year: n of the metrics.
        hindsight: the policy reads prices it could not have known.
    """

    timestamps: NDArray[np.datetime64]
    net_values: FloatArray
    trades: IndexArray
    periods_per_year: float
    hindsight: bool

    @cached_property
    def equal_weight(self) -> FloatArray:
        """Net value of h sub-accounts, each with 1/h of the capital and of m at its own alignment, float64 (T + 1,).

        It is the mean of the net values: orders of the sub-accounts are not netted, and each pays 1/h of what
        an order of full size pays, which is no less than an order of its own size would.
        """
        return np.asarray(self.net_values.mean(axis=0))

    @cached_property
    def performances(self) -> tuple[Performance, ...]:
        """The six metrics of each alignment."""
        return tuple(performance(path, periods_per_year=self.periods_per_year) for path in self.net_values)

    def frame(self) -> pl.DataFrame:
        """One row per alignment: `alignment`, the six metrics as fractions (null where undefined), `trades`."""
        rows = [run.as_dict() for run in self.performances]
        schema = {**dict.fromkeys(METRICS, pl.Float64()), "ruined": pl.Boolean()}
        return pl.DataFrame(
            [pl.Series("alignment", range(len(rows)), dtype=pl.Int64), *pl.DataFrame(rows, schema=schema)]
        ).with_columns(pl.Series("trades", self.trades))

    def summary(self) -> pl.DataFrame:
        """`row`, the six metrics as fractions, `trades`: quantiles over the alignments, their mean, the equal weight.

        A quantile is over the alignments on which the metric is defined; the means are those of `mean_performance`.
        `trades` of the equal weight are those of all sub-accounts.
        """
        runs = self.frame().with_columns(pl.col("trades").cast(pl.Float64))
        measures = [*METRICS, "trades"]
        parts = [
            runs.select(pl.lit(f"q{quantile:.2f}").alias("row"), pl.col(measures).quantile(quantile, "linear"))
            for quantile in QUANTILES
        ]
        whole = performance(self.equal_weight, periods_per_year=self.periods_per_year)
        accounts = [
            {"row": row, **{name: run.as_dict()[name] for name in METRICS}, "trades": float(trades)}
            for row, run, trades in (
                ("mean", mean_performance(self.performances), self.trades.mean()),
                (EQUAL_WEIGHT, whole, self.trades.sum()),
            )
        ]
        return pl.concat([*parts, pl.DataFrame(accounts, schema=parts[0].schema)])


def alignments(
    bars: pl.DataFrame,
    table: FeatureTable,
    policy: TradingPolicy,
    settings: Settings,
    pair: str,
    *,
    progress: Progress | None = None,
) -> Alignments:
    """Trade the test split once for each of the h rows at which a segment's first horizon may begin.

    The rows before it are flat. Alignment 0 is the account of the full policy in `evaluate`. One alignment is
    decided at a time, so memory is that of one, and the bars are priced once.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: their features, costs and scaler.
        policy: the frozen phases.
        settings: the run's settings.
        pair: traded pair.
        progress: told after each alignment.

    Raises:
        MarketDataError: a split without bars, or a table of other bars.
    """
    progress = NoProgress() if progress is None else progress
    test = split_dataset(table.dataset(settings), settings.splits).test
    accounts = SplitAccounts(bars, test, settings, (settings.splits.test_start, settings.splits.test_end))
    count = test.horizon_bars
    net_values = np.empty((count, len(accounts.priced) + 1))
    trades = np.empty(count, dtype=np.int64)
    progress.start(f"{pair}: alignments", count)
    for offset in range(count):
        rows = test.aligned(offset)
        ledger = accounts.for_rows(rows).trade(decide(policy, rows).actions)
        net_values[offset], trades[offset] = accounts.whole_path(ledger), ledger.trades
        progress.advance(offset + 1)
    progress.finish()
    return Alignments(
        timestamps=accounts.priced.timestamps,
        net_values=net_values,
        trades=trades,
        periods_per_year=settings.market.bars_per_year,
        hindsight=policy.hindsight,
    )
