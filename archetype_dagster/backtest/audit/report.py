"""The audit of a ledger: every rule, the bar that breaks it first, the trips and their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.audit.market_rules import ALIGNED, aligned_rows, market_rules
from archetype_dagster.backtest.audit.statistics import TradeStatistics, trade_statistics
from archetype_dagster.backtest.audit.trips import round_trips
from archetype_dagster.backtest.ledger import (
    RECONCILIATION_TOLERANCE,
    Ledger,
    RuleCheck,
    check_rules,
    ledger_rules,
)
from archetype_dagster.backtest.performance import bars_per_year
from archetype_dagster.backtest.replay import bar_ends, price_bars
from archetype_dagster.settings import ExecutionSettings, PairSettings, Settings
from archetype_dagster.types import BoolArray, JsonDict

_RETURNS: Final = "the trips earn the total return"
_COVERS: Final = "the account covers the whole span, up to its end or to ruin"


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        checks: every rule with the first bar that breaks it.
        trips: the round trips (see `round_trips`).
        statistics: how the ledger traded.
        total_return: TR recomputed from the trips alone, a fraction; -1 after ruin, whatever is owed beyond it.
        bars: number of bars audited.
    """

    checks: tuple[RuleCheck, ...]
    trips: pl.DataFrame
    statistics: TradeStatistics
    total_return: float
    bars: int

    @property
    def passed(self) -> bool:
        """True where every rule holds at every bar."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per broken rule, with its first bar."""
        return tuple(str(check) for check in self.checks if not check.passed)

    def as_dict(self) -> JsonDict:
        """Verdict, failures, rules and statistics as JSON values."""
        return {
            "passed": self.passed,
            "failures": list(self.failures),
            "rules": [check.rule for check in self.checks],
            "bars": self.bars,
            "total_return": self.total_return,
            **self.statistics.as_dict(),
        }


def audit(
    ledger: Ledger,
    bars: pl.DataFrame,
    *,
    pair: str | PairSettings,
    settings: ExecutionSettings | None = None,
    periods_per_year: float | None = None,
    span: tuple[datetime, datetime] | None = None,
) -> AuditReport:
    """Hold a ledger against itself and against the market it says it traded; nothing is repaired.

    m and the commission rate are the agreed ones of `pair` and `settings`, whatever the ledger says.
    Where the ledger's bars are not those of the market, that check fails and the books are not looked at.

    Args:
        ledger: T bars.
        bars: the pair's bars, segmented; those of the ledger must be among them.
        pair: the traded pair, by name or by its settings.
        settings: how it was to trade; the paper's by default.
        periods_per_year: n of the turnover per year; by default from the market's own clock.
        span: half-open range of bar ends, UTC, that the ledger must cover; by default it may be any stretch.

    Raises:
        ValueError: a ledger with a number that is not finite; names the row.
        MarketDataError: bars that break a rule of the book or of the depth policy, or cannot be annualised.
        SettingsError: unknown pair.
    """
    execution = settings or ExecutionSettings()
    spec = Settings().pair(pair) if isinstance(pair, str) else pair
    agreed = replace(ledger, max_position=spec.max_position, commission_rate=execution.commission_rate)
    trips = round_trips(agreed)
    times = bar_ends(bars)
    per_year = bars_per_year(times) if periods_per_year is None else periods_per_year
    rows, aligned = aligned_rows(ledger, times)
    rules: dict[str, BoolArray] = {
        "bar ends increase": np.append(True, np.diff(ledger.timestamps) > np.timedelta64(0, "us")),
        ALIGNED: aligned,
        **({} if span is None else {_COVERS: _covers(ledger, bars, span)}),
        **ledger_rules(agreed),
    }
    if aligned.all():
        traded = bars[int(rows[0]) : int(rows[-1]) + 1]
        rules |= market_rules(agreed, traded, price_bars(traded, spec, execution), execution)
    total_return = float(trips["net_pnl"].sum()) / ledger.initial_capital
    rules |= _returns_rule(ledger, total_return)
    return AuditReport(
        checks=check_rules(rules, ledger.timestamps),
        trips=trips,
        statistics=trade_statistics(agreed, periods_per_year=per_year, trips=trips),
        total_return=-1.0 if ledger.ruined else total_return,
        bars=len(ledger),
    )


def _covers(ledger: Ledger, bars: pl.DataFrame, span: tuple[datetime, datetime]) -> BoolArray:
    """Whether the ledger begins and ends where the span's bars do; one that was ruined ends there."""
    times = bar_ends(bars.filter(pl.col("timestamp").is_between(*span, closed="left")))
    held = np.ones(len(ledger), dtype=np.bool_)
    held[0] = len(times) > 0 and ledger.timestamps[0] == times[0]
    held[-1] &= len(times) > 0 and (ledger.ruined or ledger.timestamps[-1] == times[-1])
    return held


def _returns_rule(ledger: Ledger, total_return: float) -> Mapping[str, BoolArray]:
    """The last net value is the initial capital and what the trips earned, to 1e-9 of the larger."""
    held = np.ones(len(ledger), dtype=np.bool_)
    reported = float(ledger.net_value[-1]) / ledger.initial_capital - 1
    held[-1] = abs(total_return - reported) <= RECONCILIATION_TOLERANCE * max(1.0, abs(reported))
    return {_RETURNS: held}
