"""What the venue says of an order: what it took, and what resting orders got."""

from __future__ import annotations

from typing import NamedTuple

from archetype_dagster.backtest.engine.book_records import Outcome
from archetype_dagster.backtest.engine.orders import Order


class Made(NamedTuple):
    """What a resting order got: its number, the order as it was sent, base units and quote units."""

    order_id: int
    order: Order
    size: float
    paid: float


class Taken(NamedTuple):
    """What an order took.

    Attributes:
        size: base units.
        paid: price times size, quote units.
        beyond: of the size, what the depth policy priced.
        outcome: `accepted`, or why the rest, or all of it, was refused.
        rest: size refused, base units.
        withdrawn: own resting orders that the self-trade policy cancelled.
        made: what own resting orders got of it, where that policy lets them trade.
    """

    size: float
    paid: float
    beyond: float
    outcome: Outcome
    rest: float
    withdrawn: tuple[int, ...]
    made: tuple[Made, ...] = ()
