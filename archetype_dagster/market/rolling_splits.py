"""Splits that move on with time: the same lengths, later by whole weeks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from archetype_dagster.settings import SplitSettings

_WEEK: Final = timedelta(days=7)


def rolled_splits(splits: SplitSettings, until: datetime) -> dict[str, datetime]:
    """The six dates by dotted setting, moved on by the most whole weeks with which no split reaches past `until`.

    Empty where that is none, so that splits of the past stay what they are until a week has gone.

    Args:
        splits: the dates of the settings.
        until: an aware time, usually the present.

    Raises:
        ValueError: a time without a zone.
    """
    if until.tzinfo is None:
        raise ValueError(f"until must be a time with a zone, got {until}")
    weeks = (until - splits.test_end) // _WEEK
    if weeks <= 0:
        return {}
    return {f"splits.{name}": getattr(splits, name) + weeks * _WEEK for name in SplitSettings.model_fields}
