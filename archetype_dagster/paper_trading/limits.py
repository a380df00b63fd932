"""The limits that stop a paper trader."""

from __future__ import annotations

from dataclasses import dataclass

from archetype_dagster.paper_trading.account import Account
from archetype_dagster.settings.paper_trading import LimitSettings
from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class Stop:
    """Why trading stopped.

    Attributes:
        limit: `stale_data`, `max_drawdown`, `max_position`, `max_notional`, `ruin`, or a fault whose policy is `stop`.
        message: one line for a person.
    """

    limit: str
    message: str

    def as_dict(self) -> JsonDict:
        """The stop as plain JSON values, for `Stop(**values)`."""
        return dict(vars(self))


def beyond_limits(position: float, mark: float, limits: LimitSettings) -> Stop | None:
    """The limit that a position in base units would break at a mark in quote units; None where it breaks none."""
    size, notional = abs(position), abs(position) * mark
    if limits.max_position is not None and size > limits.max_position:
        return Stop("max_position", f"position {position:g} would exceed max_position {limits.max_position:g}")
    if limits.max_notional is not None and notional > limits.max_notional:
        return Stop("max_notional", f"notional {notional:,.2f} would exceed max_notional {limits.max_notional:,.2f}")
    return None


def lost(account: Account, limits: LimitSettings) -> Stop | None:
    """Ruin (net value of zero or less) or the drawdown limit, where the account has reached it."""
    if account.net_value <= 0:
        return Stop("ruin", f"ruined: the net value is {account.net_value:,.2f}")
    if limits.max_drawdown is not None and account.drawdown >= limits.max_drawdown:
        return Stop(
            "max_drawdown", f"drawdown {account.drawdown:.2%} reached the limit max_drawdown {limits.max_drawdown:.2%}"
        )
    return None
