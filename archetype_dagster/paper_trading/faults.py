"""What becomes of a delivered bar: used, with what is odd about it, or not used, by the policy of its fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from archetype_dagster.paper_trading.admission import SeenBar
from archetype_dagster.settings.paper_trading import FeedFaultSettings


class Refused(Exception):
    """A bar that is not used.

    Args:
        fault: its name in `FeedFaultSettings`.
        message: what is wrong, in words.
        policy: the fault's policy; `stop` ends trading.
    """

    def __init__(self, fault: str, message: str, policy: str) -> None:
        super().__init__(message)
        self.fault, self.stops = fault, policy == "stop"


@dataclass(frozen=True)
class LastBar:
    """What is remembered of the last bar used: its end (UTC) and its close in quote units."""

    end: datetime
    close: float


@dataclass(frozen=True)
class UsableBar:
    """A bar that is used.

    Attributes:
        end: bar end, UTC.
        row: its values in the bars schema.
        cursor: where it stands in the feed.
        follows: it ends one bar length after the last one used.
        missing: bars of the regular grid between the two.
        flags: faults that it has all the same.
    """

    end: datetime
    row: dict[str, Any]
    cursor: str
    follows: bool
    missing: int
    flags: tuple[str, ...]


def usable(seen: SeenBar, last: LastBar | None, faults: FeedFaultSettings, *, length: timedelta) -> UsableBar:
    """The bar, where the policies let it be used.

    Args:
        seen: the bar as delivered.
        last: the last bar used; None before the first.
        faults: the policies.
        length: length of a bar.

    Raises:
        Refused: it is not to be used.
    """
    if seen.end is None or seen.broken is not None:
        raise Refused("faulty_bar", str(seen.broken), faults.faulty_bar)
    if "future_bar" in seen.flags:
        raise Refused("future_bar", "ends more than a bar length ahead of the clock", faults.future_bar)
    if last is not None and seen.end <= last.end:
        repeated = seen.end == last.end
        fault, policy = ("repeated_bar", faults.repeated_bar) if repeated else ("late_bar", faults.late_bar)
        raise Refused(fault, f"the last bar used ended at {last.end.isoformat()}", policy)
    flags = seen.flags
    if last is not None and _moved(seen.row, last.close) > faults.outlier_fraction:
        flags = (*flags, "price_outlier")
    for fault in flags:
        policy = getattr(faults, fault)
        if policy in ("drop", "stop"):
            raise Refused(fault, f"policy {policy}", policy)
    passed = length if last is None else seen.end - last.end
    # Grid points strictly between: a bar off the grid makes a break in which none need be missing.
    missing = max(-(-passed // length) - 1, 0)
    if missing and last is not None and faults.missing_bar == "stop":
        raise Refused("missing_bar", f"{missing} missing after {last.end.isoformat()}", faults.missing_bar)
    return UsableBar(seen.end, seen.row, seen.cursor, passed == length, missing, flags)


def _moved(row: Mapping[str, Any], close: float) -> float:
    """Largest distance of a bar's prices from a close, as a fraction of it."""
    return max(abs(float(row[name]) / close - 1) for name in ("open", "high", "low", "close"))
