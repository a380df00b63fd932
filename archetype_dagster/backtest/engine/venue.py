"""One leg's order book during a run: what is shown, what orders get, and when resting orders fill.

The rule for resting orders is a cautious one. An order fills when a later snapshot's best opposite price reaches
it, by no more than the size shown at such prices and at its own price; or when trades with a known taker have used
up the size before it at its price and better ones. Trades through the price that only a bar's high or low tells
of fill nothing. A snapshot never moves an order back; it moves forward only where less is shown than stood before it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from archetype_dagster.backtest.engine.book_checks import MOST_LOTS
from archetype_dagster.backtest.engine.book_records import Outcome, RecordArray, SelfTradePolicy, Side
from archetype_dagster.backtest.engine.executed import Made, Taken
from archetype_dagster.backtest.engine.leg import ShownBook
from archetype_dagster.backtest.engine.order_book import Execution, OrderBook
from archetype_dagster.backtest.engine.orders import Order
from archetype_dagster.market.book_walk import UNTRADABLE_BPS, beyond_the_book
from archetype_dagster.market.book_walk import Fill as Walk
from archetype_dagster.market.impact import BPS, ImpactCurve
from archetype_dagster.settings import DepthPolicy
from archetype_dagster.settings.engine import EngineDepthPolicy

OWN: Final = 1
_PRINT_ID: Final = 2**61
_TINY: Final = 1e-12
_SHORTFALL: Final = 1e-9


class Venue:
    """The live book of one leg.

    A snapshot goes into the book once somebody needs it: an order, a resting order, or whoever looks.

    Args:
        lot_size: of the book, base units.
        impact_curve: of the depth policy `extrapolate`.
        depth_policy: of market orders.
        self_trade: when an order meets an own one.

    Attributes:
        book: the order book; `refresh` it before looking.
        resting: own resting orders by number.
        mid: of the newest snapshot, quote units.
        smallest: half a step of the book: the size, base units, at and below which an order is nothing.
    """

    def __init__(
        self,
        lot_size: float,
        impact_curve: ImpactCurve,
        *,
        depth_policy: EngineDepthPolicy,
        self_trade: SelfTradePolicy,
    ) -> None:
        self.book = OrderBook(lot_size=lot_size, off_lot="round", self_trade=self_trade)
        self.resting: dict[int, Order] = {}
        self.mid, self.smallest = float("nan"), lot_size / 2
        self._policy, self._curve = depth_policy, impact_curve
        self._meets_own = self_trade == "allow"
        self._shown: ShownBook | None = None
        self._is_stale = False
        self._beyond = [0.0, 0.0]

    def show(self, shown: ShownBook) -> list[Made]:
        """Replace the market's side of the book; gives what that filled of the resting orders."""
        self.mid = shown.mid
        self._shown, self._is_stale = shown, True
        self._beyond = [0.0, 0.0]
        return self.refresh() if self.resting else []

    def refresh(self) -> list[Made]:
        """Bring the book up to the newest snapshot."""
        shown = self._shown
        if shown is None or not self._is_stale:
            return []
        self._is_stale = False
        return self._made(self.book.replace_market_levels(*shown.bid[:2], *shown.ask[:2]))

    def trade(self, price: float, size: float, *, taker_buys: bool) -> list[Made]:
        """Let a trade of strangers consume the queues; gives what it filled of the resting orders."""
        if not self.resting:
            return []
        side: Side = "buy" if taker_buys else "sell"
        _, sizes = self.book.depth("sell" if taker_buys else "buy")
        # As for orders: no more than could matter, so that the book can count it.
        size = min(size, 2 * float(sizes.sum()))
        if size <= self.smallest:
            return []
        got = self.book.submit(side, size, price=price, order_type="ioc", owner=0, order_id=_PRINT_ID)
        return self._made(got.fills)

    def refusal(self, order: Order) -> tuple[str, str] | None:
        """Why the book cannot count an order's size, as (reason, detail)."""
        if order.size <= self.smallest:
            return "too_small", f"at most half a step of {self.book.lot_size:.3g}"
        most = MOST_LOTS * self.book.lot_size
        if order.type != "market" and order.size > most:
            return "too_large", f"more than {most:.10g}, the most that the book of this leg counts"
        return None

    def market(self, order_id: int, side: Side, size: float, *, forced: bool = False) -> Taken:
        """Take at any price: the visible levels, then what the depth policy finds beyond them.

        Args:
            order_id: its number.
            side: `buy` or `sell`.
            size: base units.
            forced: a forced close, which `partial` and `reject` do not stop: it is priced as by `extrapolate`.
        """
        self.refresh()
        policy = "extrapolate" if forced and self._policy in ("partial", "reject") else self._policy
        visible = self._visible(side)
        if policy == "reject" and size - visible > _SHORTFALL * size:
            return Taken(0.0, 0.0, 0.0, "cannot_fill", size, ())
        filled, loss, own_size, own_paid = 0.0, 0.0, 0.0, 0.0
        outcome: Outcome = "accepted"
        withdrawn: tuple[int, ...] = ()
        made: tuple[Made, ...] = ()
        if visible > 0:
            # No order larger than what is there: the book counts in lots too fine for sizes far beyond its own.
            got = self.book.submit(side, min(size, 2 * visible), order_type="market", owner=OWN, order_id=order_id)
            made, withdrawn = tuple(self._made(got.fills)), self._withdrawn(got)
            own_size, own_paid = sum(one.size for one in made), sum(one.paid for one in made)
            strangers = got.fills[got.fills["maker_owner"] != OWN] if made else got.fills
            filled, loss = got.filled, self._loss(strangers, side)
            outcome = "self_trade" if got.outcome == "self_trade" else "accepted"
        rest = size - filled
        if rest <= max(_TINY * size, self.book.lot_size):
            filled, rest = size, 0.0
        beyond = 0.0
        if rest and policy != "partial" and outcome == "accepted":
            loss += self._loss_beyond(side, rest, "last_level" if policy == "last_level" else "extrapolate")
            filled, beyond, rest = size, rest, 0.0
        elif rest and outcome == "accepted":
            outcome = "expired"
        sign = 1.0 if side == "buy" else -1.0
        paid = (filled - own_size) * self.mid + sign * loss + own_paid
        return Taken(filled, paid, beyond, outcome, rest, withdrawn, made)

    def place(self, order_id: int, order: Order) -> Taken:
        """Send an order with a limit; what it may rest, rests. Only visible levels fill it."""
        self.refresh()
        got = self.book.submit(
            order.side, order.size, price=order.price, order_type=order.type, owner=OWN, order_id=order_id
        )
        return self._placed(order_id, order, got)

    def amend(self, order_id: int, *, size: float, price: float) -> Taken:
        """Change an own resting order; what it takes at its new price is taken."""
        self.refresh()
        order = self.resting[order_id]
        got = self.book.amend(order_id, price=price, size=size, post_only=order.type == "post_only")
        if got.outcome == "would_cross":
            return Taken(0.0, 0.0, 0.0, got.outcome, 0.0, ())
        del self.resting[order_id]
        return self._placed(order_id, Order(order.instrument, order.side, size, price, order.type, order.tag), got)

    def cancel(self, order_id: int) -> float:
        """Take an own order out; gives the size that rested."""
        del self.resting[order_id]
        return self.book.cancel(order_id).withdrawn

    def open_sizes(self) -> tuple[float, float]:
        """Own resting buys and sells, base units."""
        buys = sells = 0.0
        for order_id, order in self.resting.items():
            size = self.book.order(order_id).size
            buys, sells = (buys + size, sells) if order.side == "buy" else (buys, sells + size)
        return buys, sells

    def _placed(self, order_id: int, order: Order, got: Execution) -> Taken:
        if got.resting > 0:
            self.resting[order_id] = order
        refused = got.outcome in ("would_cross", "cannot_fill")
        paid = float(got.fills["price"] @ got.fills["size"])
        rest = order.size if refused else got.withdrawn
        withdrawn = self._withdrawn(got)
        return Taken(got.filled, paid, 0.0, got.outcome, rest, withdrawn, tuple(self._made(got.fills)))

    def _withdrawn(self, got: Execution) -> tuple[int, ...]:
        numbers = tuple(got.withdrawn_orders.tolist())
        for number in numbers:
            del self.resting[number]
        return numbers

    def _made(self, fills: RecordArray) -> list[Made]:
        if not len(fills) or not self.resting:
            return []
        own = fills[fills["maker_owner"] == OWN]
        rows = zip(own["maker_id"].tolist(), own["size"].tolist(), own["price"].tolist(), strict=True)
        made: dict[int, list[float]] = {}
        for number, size, price in rows:
            sums = made.setdefault(number, [0.0, 0.0])
            sums[0] += size
            sums[1] += size * price
        found = [Made(number, self.resting[number], *sums) for number, sums in made.items()]
        for number in made:
            if number not in self.book:
                del self.resting[number]
        return found

    def _visible(self, side: Side) -> float:
        """Size that an order could take, base units: of strangers, and own where the policy lets them trade."""
        _, sizes = self.book.depth("sell" if side == "buy" else "buy")
        if not self.resting or self._meets_own:
            return float(sizes.sum())
        buys, sells = self.open_sizes()
        return max(float(sizes.sum()) - (sells if side == "buy" else buys), 0.0)

    def _loss(self, fills: RecordArray, side: Side) -> float:
        """Loss against the mid by level, as in the cost tables: no fill is better than the mid."""
        distance = fills["price"] - self.mid if side == "buy" else self.mid - fills["price"]
        return float(np.maximum(distance, 0.0) @ fills["size"])

    def _loss_beyond(self, side: Side, size: float, policy: DepthPolicy) -> float:
        """Loss of what the visible book does not hold; orders at one snapshot add up to what one order would lose."""
        code = 0 if side == "buy" else 1
        before = self._beyond[code]
        self._beyond[code] += size
        if self._shown is None:
            raise ValueError("no snapshot has been shown yet")
        shown = self._shown.ask if side == "buy" else self._shown.bid
        if shown.empty:
            return size * self.mid * (UNTRADABLE_BPS * BPS)
        sign = 1.0 if side == "buy" else -1.0
        worst = np.array([np.maximum(sign * (shown.prices - self.mid), 0.0).max()])
        depth, mid = np.array([shown.sizes.sum()]), np.array([self.mid])

        def lost(unfilled: float) -> float:
            walk = Walk(np.zeros(1), depth, np.array([unfilled]))
            return float(beyond_the_book(walk, worst, mid, policy, self._curve)[0])

        return lost(before + size) - (lost(before) if before else 0.0)
