"""Cross margin: what positions need as security, when an account is closed by force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.settings import MarginSettings


@dataclass(frozen=True)
class MarginRates:
    """Security of one leg as fractions of its notional at the mark.

    Attributes:
        initial: needed to open.
        maintenance: below it the account is closed.
    """

    initial: float
    maintenance: float

    @classmethod
    def of(cls, settings: MarginSettings, *, is_swap: bool) -> Self:
        """The rates of a leg's kind."""
        if is_swap:
            return cls(settings.swap_initial_rate, settings.swap_maintenance_rate)
        return cls(settings.spot_initial_rate, settings.spot_maintenance_rate)


class CrossMargin:
    """One account's net value secures all legs together; no leg's profit is set aside for it alone.

    Args:
        rates: one per leg.
    """

    def __init__(self, rates: Sequence[MarginRates]) -> None:
        self.rates = tuple(rates)

    def initial(self, exposures: Sequence[float], marks: Sequence[float]) -> float:
        """Security for opening positions of |exposures| base units, quote units: sum of |E| p rate."""
        return sum(
            rates.initial * exposure * mark
            for rates, exposure, mark in zip(self.rates, exposures, marks, strict=True)
            if exposure
        )

    def maintenance(self, portfolio: Portfolio) -> float:
        """Security that the open positions need to stay open, quote units."""
        return sum(
            rates.maintenance * holding.notional for rates, holding in zip(self.rates, portfolio.holdings, strict=True)
        )

    def is_breached(self, portfolio: Portfolio) -> bool:
        """Whether there is a position and the net value is below its maintenance margin."""
        needed = self.maintenance(portfolio)
        return needed > 0 and portfolio.net_value < needed
