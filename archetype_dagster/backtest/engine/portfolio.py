"""Cash, positions and average entry prices of one account: one accounting for every leg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_DUST: Final = 1e-12


class Holding:
    """One leg of an account.

    Attributes:
        position: signed base units.
        entry: average price of the open position, quote units; 0 when flat.
        mark: newest mark price, quote units; NaN before the first.
        realised: profit of closed units since the start, quote units, before fees and funding.
        settles_margin: profit moves cash and the notional does not (swaps); else every trade is paid in full.
        step: of the order book's sizes, base units: a position no larger is what rounding to it left.
    """

    __slots__ = ("entry", "mark", "position", "realised", "settles_margin", "step")

    def __init__(self, *, settles_margin: bool, step: float = 0.0) -> None:
        self.position = self.entry = self.realised = 0.0
        self.mark = float("nan")
        self.settles_margin, self.step = settles_margin, step

    @property
    def unrealised(self) -> float:
        """Profit of the open position at the mark, quote units."""
        return self.position * (self.mark - self.entry) if self.position else 0.0

    @property
    def notional(self) -> float:
        """|position| at the mark, quote units."""
        return abs(self.position) * self.mark if self.position else 0.0

    @property
    def value(self) -> float:
        """What this leg adds to the cash in the net value, quote units."""
        return self.unrealised if self.settles_margin else self.position * self.mark if self.position else 0.0


class Portfolio:
    """The account: V = cash + sum of the legs' values, in quote units.

    Cash of spot legs moves by what is bought and sold; of swaps by realised profit only, so that cash is the
    wallet balance there. Either way V = initial cash + realised + unrealised - fees + funding. The sums
    `price_profit`, `slippage`, `fees` and `funding` are a second accounting of the same run, kept event by event:
    V = initial cash + price_profit + funding - slippage - fees.

    Attributes:
        cash: quote units.
        holdings: one per leg.
        price_profit: sum of position times move of the mark, quote units.
        slippage: sum of what fills cost against the mark, quote units; negative where they gained.
        fees: fees paid, quote units.
        funding: funding received less paid, quote units.
    """

    def __init__(self, cash: float, settles_margin: Sequence[bool], *, steps: Sequence[float] | None = None) -> None:
        self.cash = cash
        steps = [0.0] * len(settles_margin) if steps is None else steps
        self.holdings = tuple(
            Holding(settles_margin=margined, step=step) for margined, step in zip(settles_margin, steps, strict=True)
        )
        self.price_profit = self.slippage = self.fees = self.funding = 0.0

    @property
    def net_value(self) -> float:
        """V, quote units."""
        value = self.cash
        for holding in self.holdings:
            if holding.position:
                value += holding.value
        return value

    @property
    def notional(self) -> float:
        """Sum of the legs' notionals at the mark, quote units."""
        return sum(holding.notional for holding in self.holdings)

    def revalue(self, leg: int, mark: float) -> None:
        """Move a leg's mark."""
        holding = self.holdings[leg]
        if holding.position:
            self.price_profit += holding.position * (mark - holding.mark)
        holding.mark = mark

    def fill(self, leg: int, signed_size: float, paid: float, fee: float) -> float:
        """Book a fill and return the profit that it realised, quote units.

        What a fill closes is realised against the average entry; what it opens, the rest of a flip included,
        enters at the fill's price.

        Args:
            leg: number of the leg.
            signed_size: base units, positive for a buy, not zero.
            paid: price times |size|, quote units, not negative.
            fee: quote units.
        """
        holding = self.holdings[leg]
        price = paid / abs(signed_size)
        before = holding.position
        after = before + signed_size
        if abs(after) <= max(_DUST * abs(signed_size), holding.step):
            after = 0.0
        realised = 0.0
        if before and (before > 0) != (signed_size > 0):
            closed = min(abs(signed_size), abs(before)) * (1.0 if before > 0 else -1.0)
            realised = closed * (price - holding.entry)
            if not after:
                holding.entry = 0.0
            elif (after > 0) != (before > 0):
                holding.entry = price
        else:
            holding.entry = (before * holding.entry + signed_size * price) / after
        holding.position = after
        holding.realised += realised
        side = 1.0 if signed_size > 0 else -1.0
        self.cash += (realised if holding.settles_margin else -side * paid) - fee
        self.fees += fee
        self.slippage += side * paid - signed_size * holding.mark
        return realised

    def pay_funding(self, leg: int, rate: float, mark: float) -> float:
        """Settle funding on the position held and return what was received, quote units: -position * mark * rate."""
        received = -self.holdings[leg].position * mark * rate
        self.cash += received
        self.funding += received
        return received
