"""Walk-forward: the policy is trained again before each window of the test span and trades only that window.

Training and validation keep their lengths and move with the window (a rolling scheme), so they end before it
begins. The stitched account is one ledger: each window's decisions start flat, its first bars are flat where the
purge leaves no decision, and a position held over the border is closed on the first bar after it, at its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from archetype_dagster.backtest.accounts import trade_every_bar
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.replay import price_bars
from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import Settings
from archetype_dagster.studies.ablations import require_a_horizon
from archetype_dagster.studies.results import StudyResult
from archetype_dagster.studies.training import Account, StudyRun


def walk_forward_runs(settings: Settings) -> dict[str, StudyRun]:
    """One run per window, by the day and hour it begins.

    Raises:
        SettingsError: a window too short for a horizon behind its purge.
    """
    runs = {}
    for window in range(settings.studies.walk_forward_windows):
        shifted = window_settings(settings, window)
        runs[f"{shifted.splits.test_start:%Y-%m-%dT%H%M}"] = StudyRun(shifted)
    return runs


def window_settings(settings: Settings, window: int) -> Settings:
    """The settings of one of the `studies.walk_forward_windows` equal windows of the test span.

    Windows are whole bars and cover the span without overlap. All other dates move with the window's start, so
    the gap between validation and test, and with it the purge, stays as it was.

    Args:
        settings: the run's settings.
        window: which window, from 0.

    Raises:
        SettingsError: no such window, or one too short for a horizon behind its purge.
    """
    count = settings.studies.walk_forward_windows
    if not 0 <= window < count:
        raise SettingsError(f"window must lie in 0..{count - 1}, got window={window}")
    start, end = (_border(settings, index) for index in (window, window + 1))
    shift = start - settings.splits.test_start
    moved = {
        f"splits.{name}": getattr(settings.splits, name) + shift
        for name in ("train_start", "train_end", "validation_start", "validation_end", "test_start")
    }
    if start >= end:
        raise SettingsError(f"studies.walk_forward_windows = {count} leaves no bar for window {window}")
    shifted = settings.changed({**moved, "splits.test_end": end})
    require_a_horizon(shifted, f"studies.walk_forward_windows, window {window}")
    return shifted


def stitched(
    results: Sequence[StudyResult], bars: pl.DataFrame, settings: Settings, pair: str, account: Account = "full"
) -> Ledger:
    """One ledger over the whole test span from the windows' decisions, each window traded by its own policy.

    Capital, costs and delay are those of `evaluate` on the whole span, so the two can be compared bar by bar.

    Args:
        results: one result per window, in order.
        bars: all bars of the pair, segmented.
        settings: the run's settings, not a window's.
        pair: traded pair.
        account: which of the results' accounts.

    Raises:
        ValueError: results that do not cover the test bars one after the other.
        MarketDataError: bars that break a rule of the book or of the depth policy.
    """
    span = (settings.splits.test_start, settings.splits.test_end)
    inside = bars.filter(pl.col("timestamp").is_between(*span, closed="left"))
    priced = price_bars(inside, settings.pair(pair), settings.execution)
    windows = [result.test for result in results]
    covered = np.concatenate([window.timestamps for window in windows]) if windows else priced.timestamps[:0]
    if not np.array_equal(covered, priced.timestamps):
        raise ValueError(
            f"the windows must cover the {len(priced)} test bars one after the other, got {len(covered)} bars of "
            f"{len(windows)} windows"
        )
    firsts = np.cumsum([0, *(len(window.timestamps) for window in windows[:-1])])
    actions = np.concatenate([window.accounts[account].actions for window in windows])
    starts = [window.horizon_starts + first for window, first in zip(windows, firsts, strict=True)]
    return trade_every_bar(actions, priced, settings=settings.execution, horizon_starts=np.concatenate(starts))


def _border(settings: Settings, index: int) -> datetime:
    splits = settings.splits
    bar = timedelta(minutes=settings.market.bar_minutes)
    bars = -((splits.test_start - splits.test_end) // bar)
    if index == settings.studies.walk_forward_windows:
        return splits.test_end
    return splits.test_start + bar * (index * bars // settings.studies.walk_forward_windows)
