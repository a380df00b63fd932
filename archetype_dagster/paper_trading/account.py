"""The money of a paper trader: what a change of position costs and leaves, by the cost model of every ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from archetype_dagster.market.single_bar import read_bar
from archetype_dagster.paper_trading.policy import BarPolicy
from archetype_dagster.types import FLAT, JsonDict


@dataclass(frozen=True)
class Account:
    """Cash and position after the last bar.

    Attributes:
        capital: net value before the first trade, quote units.
        cash: quote units.
        action: action held: 0 short, 1 flat, 2 long.
        mark: mark price of the last bar, quote units.
        net_value: cash + position * mark at the last bar, quote units.
        peak: highest net value so far, the capital included, quote units.
    """

    capital: float
    cash: float
    action: int
    mark: float
    net_value: float
    peak: float

    @classmethod
    def opened(cls, capital: float, mark: float) -> Self:
        """A flat account."""
        return cls(capital, capital, FLAT, mark, capital, capital)

    @property
    def drawdown(self) -> float:
        """Fraction lost since the peak."""
        return 1.0 - self.net_value / self.peak

    def as_dict(self) -> JsonDict:
        """The account as plain JSON values, for `Account(**values)`."""
        return dict(vars(self))


@dataclass(frozen=True)
class Fill:
    """What trading at one bar did.

    Attributes:
        account: after the trades, at the bar's mark.
        fee: commission paid, quote units.
        slippage: loss against the mark by crossing the book, quote units.
    """

    account: Account
    fee: float
    slippage: float


class Market:
    """One bar as a place to trade: its mark, and fills against its book.

    Args:
        policy: knows m, commission and the depth policy.
        row: the bar.

    Attributes:
        mark: mark price p_t, quote units.

    Raises:
        MarketDataError: a bar that breaks a rule of the book.
    """

    def __init__(self, policy: BarPolicy, row: Mapping[str, Any]) -> None:
        self._policy, self._row = policy, row
        self._rate = float(policy.manifest["commission_rate"])
        self.mark = float(read_bar(row, levels=1).mid[0])

    def trade(self, account: Account, actions: Sequence[int]) -> Fill:
        """Go through some actions one after the other, none of which leaves the account revalued at the mark.

        Cash falls by traded * mark + O, as in `replay`.

        Raises:
            MarketDataError: under the depth policy `reject`, a book that cannot fill a change.
        """
        fee = slippage = 0.0
        for held, wanted in pairwise((account.action, *actions)):
            if held != wanted:
                turnover = abs(self._policy.position(wanted) - self._policy.position(held))
                commission = self._rate * turnover * self.mark
                fee += commission
                # O is the sum of the two, so what is left of it is never below zero.
                slippage += self._policy.cost(self._row, held, wanted) - commission
        action = actions[-1] if actions else account.action
        position = self._policy.position(action)
        cash = account.cash - ((position - self._policy.position(account.action)) * self.mark + fee + slippage)
        net_value = cash + position * self.mark
        after = Account(account.capital, cash, action, self.mark, net_value, max(account.peak, net_value))
        return Fill(after, fee, slippage)
