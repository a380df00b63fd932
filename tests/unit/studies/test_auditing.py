"""The audit of a test account wants the whole test split, and its files say what was found."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import polars as pl
import pytest

from archetype_dagster.artifacts import read_json
from archetype_dagster.studies.auditing import AUDIT_FILE, CROSS_CHECKS_FILE, TRIPS_FILE, audit_test_ledger


def traded(market, accounts):
    generator = np.random.default_rng(0)
    return accounts.trade(np.repeat(generator.integers(0, 3, len(market.test)), 5)[: len(market.test)].astype(np.int8))


def examine(ledger, market):
    return audit_test_ledger(ledger, market.bars, market.table, market.settings, "ETH", engines=())


def test_the_whole_account_passes_and_its_files_hold_what_was_found(market, accounts, tmp_path):
    ledger = traded(market, accounts)
    found = examine(ledger, market)
    assert found.report.failures == found.cross_checks == ()
    found.save(tmp_path)
    saved = read_json(tmp_path / AUDIT_FILE)
    assert (saved["passed"], saved["bars"]) == (True, len(ledger))
    measured = ledger.performance(market.settings.market.bars_per_year).total_return
    assert saved["total_return"] == pytest.approx(measured, abs=1e-12)
    trips = pl.read_parquet(tmp_path / TRIPS_FILE)
    assert trips["net_pnl"].sum() / ledger.initial_capital == pytest.approx(measured, abs=1e-12)
    assert read_json(tmp_path / CROSS_CHECKS_FILE) == []


def test_an_account_that_ends_before_the_split_does_fails(market, accounts):
    ledger = traded(market, accounts)
    parts = {item.name: getattr(ledger, item.name) for item in fields(ledger)}
    kept = {name: values[:100].copy() for name, values in parts.items() if isinstance(values, np.ndarray)}
    kept["reward"][-1] = -(kept["fee"][-1] + kept["slippage"][-1])
    (failure,) = examine(replace(ledger, **kept), market).report.failures
    assert failure.startswith("the account covers the whole span")
