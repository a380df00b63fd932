"""How much of a result hangs on the account: the frozen policy judged under other costs, delays and capitals.

Nothing is trained again here and no feature changes. What the policy sees of its own costs, the
realised rewards in the refiner's context, changes with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final, get_args

import polars as pl

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import ExecutionSettings, HorizonBoundary, Settings
from archetype_dagster.types import NoProgress, Progress

SENSITIVITY_SCHEMA: Final = {
    "setting": pl.String(),
    "value": pl.String(),
    "base": pl.Boolean(),
    **dict.fromkeys(METRICS, pl.Float64()),
    "ruined": pl.Boolean(),
    "trades": pl.Int64(),
    "hindsight": pl.Boolean(),
    "refused": pl.String(),
}


def sensitivities(
    bars: pl.DataFrame,
    table: FeatureTable,
    policy: TradingPolicy,
    settings: Settings,
    pair: str,
    *,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """The policy's account on the test split under each changed execution setting, one change at a time.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: their features and scaler.
        policy: the frozen phases.
        settings: the run's settings; `studies` says which values are tried.
        pair: traded pair.
        progress: told after each row.

    Returns:
        `SENSITIVITY_SCHEMA`, one row per value of commission rate, depth policy, execution delay, horizon
        boundary and initial capital, the run's own value marked `base`. Capitals are given as multiples of m
        times the first mark. Metrics are fractions, null where undefined; where the bars refuse a value,
        as `reject` does where the visible book is too thin, all are null and `refused` says why.

    Raises:
        MarketDataError: a split without bars, or a table of other bars.
    """
    progress = NoProgress() if progress is None else progress
    test = split_dataset(table.dataset(settings), settings.splits).test
    span = (settings.splits.test_start, settings.splits.test_end)
    notional = float(SplitAccounts(bars, test, settings, span).priced.mark[0]) * test.max_position
    changes = list(_changes(settings, notional))
    progress.start(f"{pair}: sensitivities", len(changes))
    judged: dict[ExecutionSettings, Ledger | MarketDataError] = {}
    rows = []
    for done, (name, value, execution) in enumerate(changes, start=1):
        if execution not in judged:
            judged[execution] = _account(bars, test, policy, settings, execution, span)
        outcome = judged[execution]
        row = {"setting": name, "value": value, "base": execution == settings.execution, "hindsight": policy.hindsight}
        if isinstance(outcome, Ledger):
            metrics = outcome.performance(settings.market.bars_per_year).as_dict()
            rows.append({**row, **metrics, "trades": outcome.trades})
        else:
            rows.append({**row, "refused": str(outcome)})
        progress.advance(done)
    progress.finish()
    return pl.DataFrame(rows, schema=SENSITIVITY_SCHEMA)


def _account(
    bars: pl.DataFrame,
    test: MarketDataset,
    policy: TradingPolicy,
    settings: Settings,
    execution: ExecutionSettings,
    span: tuple[datetime, datetime],
) -> Ledger | MarketDataError:
    """The policy's ledger under other execution settings, or why the bars refuse them."""
    changed = settings.model_copy(update={"execution": execution})
    try:
        accounts = SplitAccounts(bars, test, changed, span)
    except MarketDataError as error:
        return error
    repriced = replace(test, costs=accounts.row_costs(), execution_delay_bars=execution.execution_delay_bars)
    return accounts.trade(decide(replace(policy, settings=changed), repriced).actions)


def _changes(settings: Settings, notional: float) -> Iterator[tuple[str, str, ExecutionSettings]]:
    """Setting, value in words and the changed section; the run's own value is always among them."""
    base, tried = settings.execution, settings.studies

    def changed(name: str, value: object) -> ExecutionSettings:
        return base.model_copy(update={name: value})

    for rate in sorted({base.commission_rate, *tried.commission_rates}):
        yield "commission_rate", f"{rate:g}", changed("commission_rate", rate)
    for policy in dict.fromkeys((base.depth_policy, *tried.depth_policies)):
        yield "depth_policy", policy, changed("depth_policy", policy)
    for delay in sorted({base.execution_delay_bars, *tried.delays_bars}):
        yield "execution_delay_bars", str(delay), changed("execution_delay_bars", delay)
    for boundary in get_args(HorizonBoundary):
        yield "horizon_boundary", boundary, changed("horizon_boundary", boundary)
    own = 1.0 if base.initial_capital is None else base.initial_capital / notional
    for multiple in sorted({own, *tried.capital_multiples}):
        capital = base.initial_capital if multiple == own else multiple * notional
        yield "initial_capital", f"{multiple:g}", changed("initial_capital", capital)
