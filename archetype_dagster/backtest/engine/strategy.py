"""The class that strategies derive from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from archetype_dagster.backtest.engine.book_diff import L3BookDiff
from archetype_dagster.backtest.engine.context import Bar, BarContext
from archetype_dagster.backtest.engine.orders import Fill, Instruction


class BaseStrategy(ABC):
    """Decides at each bar's end.

    The engine calls `on_start` once, then for every bar end `on_bar`, in between `on_fill` for every fill, and
    `on_stop` once. What `on_bar` and `on_fill` return is executed in its order. `on_book_diff` is called at each
    bar's end for every leg, but only where a class defines it.
    """

    def on_start(self, ctx: BarContext) -> None:  # noqa: B027
        """Before the first bar; no bar has ended and nothing has a price yet."""

    @abstractmethod
    def on_bar(self, bar: Bar, ctx: BarContext) -> Sequence[Instruction] | None:
        """At each bar's end.

        Args:
            bar: the bar that has just ended, of the first leg; `ctx.bars` holds those of all.
            ctx: account and market at that moment.

        Returns:
            orders, targets, cancels and amends; nothing for none.
        """

    def on_fill(self, fill: Fill, ctx: BarContext) -> Sequence[Instruction] | None:
        """After each fill; orders given in answer follow those already on their way."""
        return None

    def on_book_diff(self, diff: L3BookDiff, ctx: BarContext) -> None:  # noqa: B027
        """At each bar's end, after its orders: what changed in one leg's book since the end before."""

    def on_stop(self, ctx: BarContext) -> None:  # noqa: B027
        """After the last bar, or at ruin."""
