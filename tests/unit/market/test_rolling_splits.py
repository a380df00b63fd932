from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from archetype_dagster.market.rolling_splits import rolled_splits
from archetype_dagster.settings import Settings, SplitSettings

SPLITS = SplitSettings()


def test_all_dates_move_by_the_same_whole_weeks_and_no_further_than_the_present():
    until = SPLITS.test_end + timedelta(days=16)
    rolled = rolled_splits(SPLITS, until)
    moved = Settings().changed(rolled).splits
    assert {getattr(moved, name) - getattr(SPLITS, name) for name in SplitSettings.model_fields} == {timedelta(days=14)}
    assert moved.test_end <= until < moved.test_end + timedelta(days=7)


def test_splits_stay_until_a_week_has_gone():
    assert rolled_splits(SPLITS, SPLITS.test_end + timedelta(days=6, hours=23)) == {}
    assert rolled_splits(SPLITS, datetime(2020, 1, 1, tzinfo=UTC)) == {}


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="until must be a time with a zone"):
        rolled_splits(SPLITS, datetime(2025, 1, 1))
