"""What a change of position costs on one bar's book: an entry of the cost tables, without the table."""

from __future__ import annotations

from dataclasses import dataclass

from archetype_dagster.market.book_walk import side_slippage
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.single_bar import SingleBar
from archetype_dagster.types import DepthPolicy


@dataclass(frozen=True)
class BarCosts:
    """The cost model with its numbers; see `book.trade_cost_parts`.

    Attributes:
        max_position: m, base units.
        commission_rate: fraction of the traded notional at the mark.
        depth_policy: what size beyond the visible book costs.
        impact_curve: of the depth policy `extrapolate`, stretched to the pair's liquidity.
    """

    max_position: float
    commission_rate: float
    depth_policy: DepthPolicy
    impact_curve: ImpactCurve

    def loss(self, bar: SingleBar, before: int, after: int) -> float:
        """Execution loss O of going from one action to another, quote units: the table's entry bit for bit.

        Args:
            bar: read with all its levels.
            before: action held, 0 short, 1 flat, 2 long.
            after: action wanted.

        Raises:
            MarketDataError: under `reject` a book that cannot fill the change.
        """
        if before == after:
            return 0.0
        quantity = abs(after - before) * self.max_position
        slippage = self._slippage(bar, (quantity,), buys=after > before)
        return slippage[0] + self.commission_rate * quantity * float(bar.mid[0])

    def check_depth(self, bar: SingleBar) -> None:
        """Refuse, under `reject`, a book on which not every change of position can be filled, as the tables do.

        Raises:
            MarketDataError: the book is too shallow.
        """
        if self.depth_policy == "reject":
            for buys in (True, False):
                self._slippage(bar, (self.max_position, 2 * self.max_position), buys=buys)

    def _slippage(self, bar: SingleBar, quantities: tuple[float, ...], *, buys: bool) -> list[float]:
        losses = side_slippage(
            bar.books,
            bar.mid,
            quantities,
            buys=buys,
            depth_policy=self.depth_policy,
            impact_curve=self.impact_curve,
        )
        return [float(loss) for loss in losses[:, 0]]
