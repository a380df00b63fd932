"""The audit of a ledger with the accounts that other engines make of the same signals, as files of one artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.audit import AuditReport, audit, write_steps
from archetype_dagster.backtest.crosscheck import CrossCheck, cross_check, installed_engines
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import Settings

AUDIT_FILE: Final = "audit.json"
TRIPS_FILE: Final = "round_trips.parquet"
CROSS_CHECKS_FILE: Final = "cross_checks.json"


@dataclass(frozen=True)
class LedgerAudit:
    """What was found.

    Attributes:
        ledger: the account.
        report: the audit.
        cross_checks: the same signals through each engine that is installed.
    """

    ledger: Ledger
    report: AuditReport
    cross_checks: tuple[CrossCheck, ...]

    def save(self, directory: Path) -> None:
        """Write audit.json, round_trips.parquet, cross_checks.json and the steps as CSV into an existing folder."""
        write_json(directory / AUDIT_FILE, self.report.as_dict())
        self.report.trips.write_parquet(directory / TRIPS_FILE)
        write_json(directory / CROSS_CHECKS_FILE, [check.as_dict() for check in self.cross_checks])
        write_steps(self.ledger, directory)


def audit_test_ledger(
    ledger: Ledger,
    bars: pl.DataFrame,
    table: FeatureTable,
    settings: Settings,
    pair: str,
    *,
    engines: Sequence[str] | None = None,
) -> LedgerAudit:
    """Audit an account on the test split and replay its signals through other engines.

    Args:
        ledger: the account, from the first test bar to the last or to ruin.
        bars: all bars of the pair, segmented.
        table: the feature table that the decisions were made on.
        settings: the run's settings.
        pair: traded pair.
        engines: engines to replay through; by default those that are installed.

    Raises:
        SettingsError: an engine is not installed.
        MarketDataError: the ledger's bars are not among `bars`.
    """
    spec, span = settings.pair(pair), (settings.splits.test_start, settings.splits.test_end)
    test = split_dataset(table.dataset(settings), settings.splits).test
    accounts = SplitAccounts(bars, test, settings, span)
    report = audit(
        ledger,
        bars,
        pair=spec,
        settings=settings.execution,
        periods_per_year=settings.market.bars_per_year,
        span=span,
    )
    checks = tuple(
        cross_check(
            ledger,
            bars,
            pair=spec,
            settings=settings.execution,
            engine=engine,
            horizon_starts=accounts.horizon_starts,
        )
        for engine in (installed_engines() if engines is None else engines)
    )
    return LedgerAudit(ledger, report, checks)
