"""What a strategy may ask for, what it has resting and what it is told of a fill. Sizes are base units everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from archetype_dagster.backtest.engine.book_records import OrderType, Side
from archetype_dagster.backtest.engine.instruments import Instrument

Cause = Literal["order", "target", "liquidation", "stop"]
Liquidity = Literal["taker", "maker"]


@dataclass(frozen=True, slots=True)
class Order:
    """An order to buy or sell.

    Attributes:
        instrument: of which leg.
        side: `buy` or `sell`.
        size: base units.
        price: limit in quote units; None for a market order and for no other.
        type: `market`; `limit` takes what it crosses and rests; `ioc` lets the rest expire; `fok` fills whole or not
            at all; `post_only` is refused where it would take.
        tag: the strategy's own name for it; comes back in fills, rejections and open orders.

    Raises:
        ValueError: an unknown side or type, or a size or price that is missing, superfluous, not positive or
            not finite.
    """

    instrument: Instrument
    side: Side
    size: float
    price: float | None = None
    type: OrderType = "market"
    tag: str = ""

    def __post_init__(self) -> None:
        if self.side not in get_args(Side):
            raise ValueError(f"side must be one of {get_args(Side)}, got side={self.side!r}")
        if self.type not in get_args(OrderType):
            raise ValueError(f"type must be one of {get_args(OrderType)}, got type={self.type!r}")
        if (self.price is None) != (self.type == "market"):
            raise ValueError(f"a market order has no price and any other has one, got {self.type} price={self.price}")
        _positive("size", self.size)
        if self.price is not None:
            _positive("price", self.price)


@dataclass(frozen=True, slots=True)
class Target:
    """A position wanted: a market order for what is missing when it executes; resting orders do not count.

    Attributes:
        instrument: of which leg.
        position: signed base units.
        tag: as an order's.

    Raises:
        ValueError: a position that is not finite.
    """

    instrument: Instrument
    position: float
    tag: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.position):
            raise ValueError(f"position must be finite, got position={self.position}")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Take a resting order out of the book."""

    order_id: int


@dataclass(frozen=True, slots=True)
class Amend:
    """Change a resting order: to no more than its size at its price it keeps its place in the queue, else loses it.

    Attributes:
        order_id: which.
        size: what is to rest, base units; None leaves it.
        price: quote units; None leaves it.
    """

    order_id: int
    size: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("price", self.price)):
            if value is not None:
                _positive(name, value)


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """End trading: resting and pending orders are cancelled, every later one is refused with this reason."""

    reason: str = "kill switch"


Instruction = Order | Target | Cancel | Amend | KillSwitch


class OpenOrder(NamedTuple):
    """A resting order of the account.

    Attributes:
        order_id: the number that `Cancel` and `Amend` take.
        instrument: of which leg.
        side: `buy` or `sell`.
        price: quote units.
        size: still resting, base units.
        size_ahead: what stands before it at its price, base units.
        tag: as given.
    """

    order_id: int
    instrument: Instrument
    side: Side
    price: float
    size: float
    size_ahead: float
    tag: str


class Fill(NamedTuple):
    """What one order got at one moment; an order that fills in parts has one for each.

    Attributes:
        timestamp: UTC.
        instrument: of which leg.
        order_id: the order's number.
        tag: the order's.
        cause: `order`, `target`, or the engine's own `liquidation` and `stop`.
        side: `buy` or `sell`.
        size: base units.
        price: mean price over the levels taken, quote units.
        fee: quote units, the liquidation's included.
        liquidity: `taker`, or `maker` for a resting order.
        beyond_book: of the size, what the depth policy priced, base units.
        realised: profit of what this closed, quote units, before fees.
        position: after it, signed base units.
    """

    timestamp: datetime
    instrument: Instrument
    order_id: int
    tag: str
    cause: Cause
    side: Side
    size: float
    price: float
    fee: float
    liquidity: Liquidity
    beyond_book: float
    realised: float
    position: float


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {name}={value}")
