"""What an order must pass before it reaches the book: the grid, the limits and the initial margin."""

from __future__ import annotations

from collections.abc import Sequence

from archetype_dagster.backtest.engine.book_records import Side
from archetype_dagster.backtest.engine.margin import CrossMargin
from archetype_dagster.backtest.engine.orders import Order
from archetype_dagster.backtest.engine.portfolio import Portfolio
from archetype_dagster.backtest.engine.risk import RiskGuard
from archetype_dagster.backtest.engine.venue import Venue

Refusal = tuple[str, str]
_NOTHING = 1e-12


class OrderGate:
    """Says why an order may not be, as (reason, detail).

    Args:
        venues: one a leg; their resting orders count as if all of one side had filled.
        portfolio: cash and positions.
        guard: limits.
        margin: initial margin, None where there is none.
    """

    def __init__(
        self, venues: Sequence[Venue], portfolio: Portfolio, guard: RiskGuard, margin: CrossMargin | None
    ) -> None:
        self._venues, self._portfolio, self._guard, self._margin = venues, portfolio, guard, margin
        self._checks_exposure = margin is not None or guard.limits_exposure

    def refusal(self, leg: int, order: Order, added: float) -> Refusal | None:
        """Why an order is not taken.

        Args:
            leg: number of its leg.
            order: as it is sent, or as it would be after an amend.
            added: size that it adds to what is open already, base units.
        """
        return (
            self._guard.refuse_any()
            or _off_grid(order)
            or self._venues[leg].refusal(order)
            or self._exposed(leg, order.side, added)
        )

    def _exposed(self, leg: int, side: Side, size: float) -> Refusal | None:
        if not self._checks_exposure:
            return None
        exposures, marks, before = [], [], 0.0
        for number, (venue, holding) in enumerate(zip(self._venues, self._portfolio.holdings, strict=True)):
            buys, sells = venue.open_sizes()
            if number == leg:
                before = max(abs(holding.position + buys), abs(holding.position - sells))
                buys, sells = (buys + size, sells) if side == "buy" else (buys, sells + size)
            exposures.append(max(abs(holding.position + buys), abs(holding.position - sells)))
            marks.append(holding.mark)
        if exposures[leg] <= before * (1 + _NOTHING):
            # What shrinks exposure is never refused, however far prices have moved it past a limit.
            return None
        refusal = self._guard.refuse_exposure(leg, exposures, marks)
        if refusal is None and self._margin is not None:
            needed, worth = self._margin.initial(exposures, marks), self._portfolio.net_value
            if needed > worth * (1 + _NOTHING):
                return "initial_margin", f"needs {needed:.10g}, net value is {worth:.10g}"
        return refusal


def _off_grid(order: Order) -> Refusal | None:
    instrument = order.instrument
    if instrument.lot_size is None and instrument.tick_size is None:
        return None
    try:
        instrument.check_order(order.size / instrument.contract_size, order.price)
    except ValueError as error:
        return "off_grid", str(error)
    return None
